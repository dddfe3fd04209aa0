"""Published schedulers: a file each, or a folder where one is more than a file."""
