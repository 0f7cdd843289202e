"""Memory beside the KV blocks: how much host memory there is for them, and the files of one model."""
