"""The pre-tokenizers that GGUF files name; pelton.tokenize.PRETOKENIZERS lists them."""
