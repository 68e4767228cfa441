"""Nouns that the stages hand each other: plain data, no behaviour of a stage."""
