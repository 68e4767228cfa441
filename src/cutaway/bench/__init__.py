"""What `cutaway bench` runs: workloads, the engines that get them, and tables of ratios."""
