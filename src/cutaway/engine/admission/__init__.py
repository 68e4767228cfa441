"""What a request passes before it runs: checks, its grammar, its place among those that wait."""
