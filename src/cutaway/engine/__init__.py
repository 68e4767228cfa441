"""Calls the stages in order: requests in, tokens and text out. Start reading at engine.py."""
