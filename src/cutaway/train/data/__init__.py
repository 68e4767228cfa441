"""What training reads: examples, their masks and pairs, their order, and how they are packed."""
