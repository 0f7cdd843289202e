"""Commands about a server that runs. They load no model."""
