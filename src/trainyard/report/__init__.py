"""Tables, plots, timelines, HTML."""
