"""The paged key-value cache: which page holds which token of which sequence, and its tensors."""
