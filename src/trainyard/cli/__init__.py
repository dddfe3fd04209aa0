"""The command line: one verb per act, one file per verb."""
