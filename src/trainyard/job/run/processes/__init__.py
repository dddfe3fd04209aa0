"""The processes of a run: how they start, are watched, and are started again."""
