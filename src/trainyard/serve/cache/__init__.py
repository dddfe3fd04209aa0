"""The KV cache, in blocks."""
