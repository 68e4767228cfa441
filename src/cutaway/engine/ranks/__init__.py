"""One model over several processes: rank 0 leads, the others compute the same steps."""
