"""What a model is: capture, index algebra, op tables, rewrites."""
