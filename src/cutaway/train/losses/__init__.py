"""What training minimizes: losses, log-probabilities under them, and distances of distributions."""
