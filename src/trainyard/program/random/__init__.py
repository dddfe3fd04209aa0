"""Random numbers that depend only on where an element lies in its whole tensor, so that every plan draws the same."""
