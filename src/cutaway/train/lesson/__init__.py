"""A whole training, small enough to be made in front of its reader."""
