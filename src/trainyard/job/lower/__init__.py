"""Lower a plan to one graph per rank with explicit collectives."""
