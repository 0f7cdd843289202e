"""The engine in a process of its own: messages, the loop that steps it, who watches it, and its asyncio client."""
