"""How much an engine takes on: the size of its steps, how long requests may take, what it says when overloaded."""
