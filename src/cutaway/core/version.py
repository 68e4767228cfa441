"""The version, in a place that every room may ask."""

__version__ = "0.1.0"  # as pyproject.toml has it; tests/house holds both
