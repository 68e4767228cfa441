"""What commands share: a model and its parts on this machine, an answer and its record."""
