"""What architectures share: configurations read field by field, and descriptions of layers."""
