"""Matrices of GGUF files: how blocks pack numbers, and how numbers become blocks."""
