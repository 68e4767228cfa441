"""Making models, from text to weights to an assistant: one linear script per stage."""
