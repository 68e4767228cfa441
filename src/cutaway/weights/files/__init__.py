"""Files of weights, read and written: safetensors with header and index, folders, GGUF."""
