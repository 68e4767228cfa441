"""An engine for many callers: its process, messages, loop, view queue, and Python fronts."""
