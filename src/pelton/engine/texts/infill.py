"""Infill: what stands around a gap -> ids of a prompt whose answer fills it. The order of its parts is the model's.

Code and names of files are text: a special token that is spelled out in them does not count as such.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.checkpoint.special_tokens import FimTokens
from pelton.core.errors import RequestError
from pelton.engine.texts.encoding import PromptEncoder

# As llama.cpp's server names what nobody named, so that prompts are the same.
REPOSITORY, THIS_FILE = "myproject", "filename"
SNIPPET = "\n\n--- snippet ---\n\n"  # before a file where the vocabulary has no token for that
SHARE_AFTER = 4  # the text after a gap gets at least one in so many tokens, if it needs them


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """`before` and `after`: the text around it; `begun`: what is written of it already; `files`: other files' names and
    texts, the most important last.
    """

    before: str
    after: str
    begun: str = ""
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Fitted:
    """Ids of a prompt, and whether something had to be left out to make it fit."""

    ids: tuple[int, ...]
    cut: bool


class Infill:
    """`tokens`: of the model, None where it was not trained to fill in: then everything is a RequestError."""

    def __init__(self, encoder: PromptEncoder, tokens: FimTokens | None) -> None:
        self._encoder = encoder
        self._tokens = tokens

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end an answer besides the model's end tokens: no gap holds a mark."""
        fim = self._tokens
        marks = () if fim is None else (fim.prefix, fim.suffix, fim.middle, fim.pad, fim.repo, fim.separator)
        return frozenset(token for token in marks if token is not None)

    def whole(self, before: str | Sequence[int], after: str) -> tuple[int, ...]:
        """Ids of a prompt with all of the text; RequestError where one of the two alone cannot fit."""
        fim = self._marks("suffix")
        encode = self._encoder.encode
        ids = encode(before, bos=False, param="prompt", special=False) if isinstance(before, str) else before
        return (*self._encoder.bos, *fim.prompt(ids, encode(after, bos=False, param="suffix", special=False)))

    def fitted(self, gap: Gap, answer: int) -> Fitted:
        """Ids that leave room for an answer of that many tokens, but take at least half of all there is.

        What does not fit is left out: files from the first on, the start of `before` and the end of `after`, which gets
        a quarter or more. `begun` stays whole: RequestError where it does not fit.
        """
        fim = self._marks("input_suffix")
        encoder, most = self._encoder, self._encoder.most_chars
        before = encoder.encode_any(gap.before[-most:], param="input_prefix")
        after = encoder.encode_any(gap.after[:most], param="input_suffix")
        begun = encoder.encode(gap.begun, bos=False, param="prompt", special=False)
        bos, marks = encoder.bos, fim.prompt((), ())
        all_there_is = encoder.max_len - 1
        room = max(all_there_is // 2, all_there_is - answer) - len(bos) - len(marks) - len(begun)
        if room < 0:
            raise encoder.too_long(f"{len(begun)} tokens", "prompt")
        behind = min(len(after), max(room // SHARE_AFTER, room - len(before)))
        front = min(len(before), room - behind)
        files, left_out = self._files(fim, gap.files, room - behind - front)
        ids = (*bos, *files, *fim.prompt([*before[len(before) - front :], *begun], after[:behind]))
        cut = left_out or front < len(before) or behind < len(after) or max(len(gap.before), len(gap.after)) > most
        return Fitted(ids, cut)

    def _files(self, fim: FimTokens, files: Sequence[tuple[str, str]], room: int) -> tuple[list[int], bool]:
        """Ids of the last files that fit, under their names, and whether some did not."""
        if not files:
            return [], False
        head = self._headed(fim.repo, f"{REPOSITORY}\n") if fim.repo is not None else []
        tail = self._headed(fim.separator, f"{THIS_FILE}\n") if fim.separator is not None else []
        room -= len(head) + len(tail)
        kept: list[int] = []
        for name, text in reversed(files):
            if len(text) > self._encoder.most_chars:
                return ([*head, *kept, *tail] if kept else []), True
            title = SNIPPET if fim.separator is None else f"{name}\n"
            ids = [*self._headed(fim.separator, title), *self._encoder.encode_any(text, param="input_extra")]
            if len(kept) + len(ids) > room:
                return ([*head, *kept, *tail] if kept else []), True
            kept[:0] = ids
        return [*head, *kept, *tail], False

    def _headed(self, mark: int | None, title: str) -> list[int]:
        return [*(() if mark is None else (mark,)), *self._encoder.encode_any(title, param="input_extra")]

    def _marks(self, param: str) -> FimTokens:
        if self._tokens is None:
            instead = "Leave it out, or use" if param == "suffix" else "Use"
            raise RequestError(
                "This model has no tokens for filling in the middle, so what comes after the gap cannot be told to it.",
                f"{instead} a model that was trained to fill in, as many for code are.",
                param=param,
                code="unsupported_parameter",
            )
        return self._tokens
