"""What views are made of: the question, the subject, inner values, drawing and payload."""
