"""From a Plan to one graph per rank with explicit collectives."""
