"""Search: many continuations of one prompt, of which the best are kept. It asks the engine, and computes nothing."""
