"""KV codecs, one file each."""
