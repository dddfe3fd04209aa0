"""Jobs over time, where they come from, and how fast each runs on what."""
