"""From what a user calls a model to its file: names, packages, the hub, and checked copies."""
