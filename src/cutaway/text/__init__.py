"""The first stage: messages become prompt text in which control tokens are marked."""
