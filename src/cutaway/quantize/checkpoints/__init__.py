"""Quantized checkpoints of other tools, one file per format, and what reading them shares."""
