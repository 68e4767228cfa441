"""A recorded answer run again: its plan, its verdict, and looks at what it computed on the way."""
