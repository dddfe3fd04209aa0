"""Published systems, one file each."""
