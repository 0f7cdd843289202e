"""The kinds of vocabulary that GGUF files carry: each knows how its arrays become the content of a tokenizer.json."""
