"""Pages that outlive their answers: pinned prefixes, and stores behind the cache."""
