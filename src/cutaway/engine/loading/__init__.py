"""From a model's name to its parts: configuration, tokenizer, template, weights in fewer bits."""
