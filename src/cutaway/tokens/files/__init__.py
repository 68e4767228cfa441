"""Tokenizers read from files and written to them, whatever the layout."""
