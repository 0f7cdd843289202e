"""KV memory: blocks, tables, and how keys and values are kept. Counts blocks; their bytes belong to the backend."""

from pelton.core.registry import Registry
from pelton.kv.codec import KVCodec

KV_CODECS: Registry[type[KVCodec]] = Registry("kv_codec", {"plain": "pelton.kv.codecs.plain:Plain"})

# A policy says which tokens stay in the cache; without one all do.
KV_POLICIES: Registry[type[object]] = Registry("kv_policy", {})
