"""The last stage: token ids become the text that a client reads, piece by piece."""
