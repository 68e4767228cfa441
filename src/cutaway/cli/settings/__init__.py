"""Settings of all commands: name, default, help and flag of each, and where its value came from."""
