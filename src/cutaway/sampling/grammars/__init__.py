"""Grammars: compiled in threads and on trial, an answer's state in one, and its mask."""
