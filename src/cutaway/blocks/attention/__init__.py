"""Kinds of attention; each declares what it keeps in the cache."""
