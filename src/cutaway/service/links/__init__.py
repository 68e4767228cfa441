"""Engines on other hosts: one side listens and has an engine, the other asks it over TCP."""
