"""Station 1, text in: text and messages -> token ids. It knows no engine; this file imports no library."""

from pelton.core.registry import Registry
from pelton.tokenize.pretokenizer import Pretokenizer

PRETOKENIZERS: Registry[Pretokenizer] = Registry(
    "pretokenizer",
    {
        "gpt-2": "pelton.tokenize.pretokenizers.byte_level:GPT_2",
        "llama-bpe": "pelton.tokenize.pretokenizers.byte_level:LLAMA_BPE",
        "qwen2": "pelton.tokenize.pretokenizers.byte_level:QWEN2",
        "smollm": "pelton.tokenize.pretokenizers.byte_level:SMOLLM",
    },
)
