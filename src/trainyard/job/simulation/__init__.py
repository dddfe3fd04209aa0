"""Turn a lowered plan into a task graph: prices, tasks of an action, memory, assembly."""
