"""From the name of a model to files on this disk: packages, the Hugging Face Hub, caches. It reads no weights."""
