"""The engine: the only layer that knows all parts. `build` wires, `Engine` steps, `LLM` is the door in Python."""
