"""How much text one token can stand for, so that a text that is far too long is refused before it is tokenised.

Invariant: a bound is given only where no character can vanish; tokens x bound is then at least the text's UTF-8 size.
"""

from collections.abc import Callable, Set
from math import prod

import tokenizers

from pelton.tokenize.token_bytes import SPACE_MARK, byte_alphabet, section

# How many times shorter a text's UTF-8 may become: nine bytes of Hangul letters are three as a syllable.
_NORMALIZERS = {"NFC": 3, "NFD": 3, "Prepend": 1}
_PRETOKENIZERS = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"}
_MARKS_SPACES = {"pattern": {"String": " "}, "content": SPACE_MARK}
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def longest_token_bytes(inner: tokenizers.Tokenizer, to_bytes: Callable[[str], bytes]) -> int | None:
    """The most UTF-8 bytes of a text that can become one token; None where there is no bound or none is known.

    `to_bytes`: a token as the vocabulary writes it -> its bytes. Walks over the vocabulary.
    """
    shrinks = _shrinks(section(inner.normalizer))
    added = inner.get_added_tokens_decoder().values()
    swallows_space = any(token.lstrip or token.rstrip for token in added)
    if shrinks is None or swallows_space or not _keeps_all(section(inner.pre_tokenizer)):
        return None
    written = inner.get_vocab(with_added_tokens=True)
    if not _spells_all(inner, written.keys()):
        return None
    # A mark may stand for a space or be one of the text's own characters, three bytes long.
    kept = [len(token.encode() if SPACE_MARK in token else to_bytes(token)) for token in written]
    return shrinks * max(*kept, *(len(token.content.encode()) for token in added), 1)


def _spells_all(inner: tokenizers.Tokenizer, written: Set[str]) -> bool:
    """Whether every byte has a token, so that nothing is dropped and no run of unknown characters becomes one."""
    model = inner.model
    if not isinstance(model, tokenizers.models.BPE):
        return False
    return written >= (_BYTE_TOKENS if model.byte_fallback else byte_alphabet().keys())


def _shrinks(normalizer: object) -> int | None:
    """The product over the steps; None for a step that may take any number of characters away."""
    factors = []
    for step in _steps(normalizer, "normalizers"):
        marks = {name: step.get(name) for name in _MARKS_SPACES} == _MARKS_SPACES
        factor = 1 if step.get("type") == "Replace" and marks else _NORMALIZERS.get(str(step.get("type")))
        if factor is None:
            return None
        factors.append(factor)
    return prod(factors)


def _keeps_all(pre_tokenizer: object) -> bool:
    steps = _steps(pre_tokenizer, "pretokenizers")
    return all(step.get("type") in _PRETOKENIZERS and step.get("behavior") != "Removed" for step in steps)


def _steps(component: object, inside: str) -> list[dict[str, object]]:
    if not isinstance(component, dict):
        return []
    steps = component.get(inside) if component.get("type") == "Sequence" else [component]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
