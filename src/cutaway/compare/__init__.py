"""What one change to an answer does: levers, both sides, and why it was slow or wrong."""
