"""SentencePiece: normalization, pieces, and its two kinds of vocabulary."""
