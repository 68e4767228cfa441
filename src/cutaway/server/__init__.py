"""The HTTP server: APIs that people already use, in front of one engine."""
