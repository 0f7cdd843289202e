"""Pre-tokenizers of byte-level BPE vocabularies: data, no code. Each cuts as the models' own tokenizer.json does."""

from dataclasses import replace

from pelton.tokenize.pretokenizer import Pretokenizer
from pelton.tokenize.pretokenizers.parts import (
    BY_ONE,
    BY_THREE,
    CASED_BY_THREE,
    CASED_WORD,
    CONTRACTION,
    DIGIT,
    LED_WORD,
    MARKS,
    MARKS_AND_PATHS,
    SPACE,
    THREE_DIGITS,
    WORDS,
)

GPT_2 = Pretokenizer(splits=(WORDS,))
GPT_NEOX = replace(GPT_2, normalizer="NFC")
SMOLLM = Pretokenizer(splits=(DIGIT, WORDS))
COMMAND_R = replace(SMOLLM, normalizer="NFC")
FALCON = Pretokenizer(splits=(r"[\p{P}\$\+<=>\^~\|`]+", WORDS, "[0-9][0-9][0-9]"))
DEFAULT = Pretokenizer(splits=(r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"))

DBRX = Pretokenizer(splits=(BY_THREE,))
GLM4 = replace(DBRX, ignore_merges=True)
LLAMA_BPE = replace(GLM4, add_bos=True)
MINICPM5 = Pretokenizer(
    splits=(THREE_DIGITS, rf"{CONTRACTION}|{LED_WORD}|\p{{N}}+|{MARKS}|{SPACE}"), ignore_merges=True
)
_HALVED_SPACE = "|".join(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"
JAIS_2 = Pretokenizer(splits=(rf"{CONTRACTION}|{LED_WORD}|{THREE_DIGITS}|{MARKS}|\s*[\r\n]+|{_HALVED_SPACE}",))

STABLELM2 = Pretokenizer(splits=(BY_ONE,))
QWEN2 = replace(STABLELM2, normalizer="NFC")
QWEN35 = Pretokenizer(
    splits=(
        rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACE}",
    ),
    normalizer="NFC",
)
SEED_CODER = Pretokenizer(splits=(rf"{CONTRACTION}|{LED_WORD}|{DIGIT}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACE}",))
BAILINGMOE = Pretokenizer(
    splits=(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
EXAONE_MOE = Pretokenizer(
    splits=(
        rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|{DIGIT}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
LAGUNA = Pretokenizer(splits=(r"[^\n]+|[\n]+", BY_ONE))
UFAKZEKA = Pretokenizer(splits=(rf"{LED_WORD}|{DIGIT}|{MARKS}|{SPACE}",))

TEKKEN = Pretokenizer(splits=(rf"{CASED_WORD}|{DIGIT}|{MARKS_AND_PATHS}",), ignore_merges=True, add_bos=True)
GPT_4O = Pretokenizer(splits=(CASED_BY_THREE,), ignore_merges=True)
MINIMAX_M2 = Pretokenizer(splits=(CASED_BY_THREE,), normalizer="NFC")
TINY_AYA = Pretokenizer(splits=(r"\d{1,3}(?=(?:\d{3})*\b)", CASED_BY_THREE))
