"""What a process needs of its machine: files read in bounds and written whole, threads, faults."""
