"""Worker processes that execute lowered graphs."""
