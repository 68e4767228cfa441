"""Engines and fronts on many hosts, placed by Ray: what one asks for, and how it comes about."""
