"""The cache of keys and values of attention, in blocks."""
