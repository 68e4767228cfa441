"""Model files: finding, fetching and checking them, and filling a model from them."""
