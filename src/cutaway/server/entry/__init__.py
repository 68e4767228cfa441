"""What every connection and request must pass first: deadlines, sizes, hosts, keys."""
