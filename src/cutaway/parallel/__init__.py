"""Ranks of one model: how they hand one another their parts of a value."""
