"""What machines are: devices, links, clusters, presets, measuring this one."""
