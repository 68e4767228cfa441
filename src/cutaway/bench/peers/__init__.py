"""One script per engine: each loads a model and answers the same questions over a pipe."""
