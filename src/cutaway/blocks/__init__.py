"""Building blocks of a transformer: each takes a Step and knows nothing of requests."""
