"""Published policies, one file each."""
