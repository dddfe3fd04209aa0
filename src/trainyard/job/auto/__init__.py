"""Our own planner: searches the product of parallel degrees, and says how sure it is."""
