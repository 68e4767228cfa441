"""Routes that look inside: views, levers, events of answers, vocabularies."""
