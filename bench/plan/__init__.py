"""The plan of reliability: its rows, how a slice of one is run, and the table of what was run."""
