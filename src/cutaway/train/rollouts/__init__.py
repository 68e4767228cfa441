"""Answers that a model samples in training: rounds of them, their rewards and advantages."""
