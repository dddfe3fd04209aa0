"""How a lowered plan becomes a task graph: prices, tasks of an action, memory, assembly."""
