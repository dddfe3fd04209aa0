"""One verb per act."""
