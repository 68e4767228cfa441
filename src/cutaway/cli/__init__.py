"""The command line: one file per command; the engine does the work."""
