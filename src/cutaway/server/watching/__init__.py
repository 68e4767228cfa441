"""How a server is watched: health, log lines, metrics and spans."""
