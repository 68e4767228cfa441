"""Text to token ids and back: vocabularies, how they are read and how they are learned."""
