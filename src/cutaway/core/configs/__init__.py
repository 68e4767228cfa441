"""The shapes that families of models have, each read from its config.json."""
