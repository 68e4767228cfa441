"""The model in training: its folder, its forms of computing, adapters, and a head for values."""
