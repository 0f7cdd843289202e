"""KV memory: blocks, tables, and how keys and values are kept. Counts blocks; their bytes belong to the backend."""

from pelton.core.registry import Registry
from pelton.kv.codec import KVCodec
from pelton.kv.policy import KVPolicy

KV_CODECS: Registry[type[KVCodec]] = Registry("kv_codec", {"plain": "pelton.kv.codecs.plain:Plain"})

# A policy says which tokens stay in the cache; without one all do.
KV_POLICIES: Registry[type[KVPolicy]] = Registry("kv_policy", {})
