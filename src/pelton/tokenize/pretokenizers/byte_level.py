"""Pre-tokenizers of byte-level BPE vocabularies: data, no code. Each cuts as the models' own tokenizer.json does."""

from pelton.tokenize.pretokenizer import Pretokenizer

# Contractions, words, numbers and other marks, each with at most one space before; then runs of white space.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# The later form: contractions in either case, any one mark may lead a word, line ends stay with the marks before them.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LEADING_MARK_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

GPT_2 = Pretokenizer(splits=(_WORDS,))

SMOLLM = Pretokenizer(splits=(r"\p{N}", _WORDS))

LLAMA_BPE = Pretokenizer(
    splits=(rf"{_CONTRACTION}|{_LEADING_MARK_WORD}|\p{{N}}{{1,3}}|{_MARKS_AND_SPACE}",),
    ignore_merges=True,
    add_bos=True,
)

QWEN2 = Pretokenizer(
    splits=(rf"{_CONTRACTION}|{_LEADING_MARK_WORD}|\p{{N}}|{_MARKS_AND_SPACE}",),
    normalizer="NFC",
)
