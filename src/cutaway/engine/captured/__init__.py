"""Steps that a GPU runs as captured graphs: inputs that stay where they are, and shapes."""
