"""OpenAI's APIs: chat completions, completions, responses."""
