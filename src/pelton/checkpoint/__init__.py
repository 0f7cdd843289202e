"""Model files: folders, GGUF, safetensors, pulled packages. Gives config and mapped bytes, knows no model family."""
