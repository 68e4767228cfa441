"""Patterns of tokenizer.json, in Oniguruma's dialect, as `regex` patterns that match alike."""
