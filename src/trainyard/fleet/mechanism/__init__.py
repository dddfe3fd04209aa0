"""From allocations to jobs that have devices: what is there, who has it, who loses it, and why others wait."""
