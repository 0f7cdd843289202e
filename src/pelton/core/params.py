"""SamplingParams: what one request asks of the choice of tokens, with vLLM's names and ranges.

And numbers as users hand them in: Python's and other libraries' alike, without importing any of these.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from pelton.core.errors import RequestError

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 20
DRAWING = ("temperature", "top_p", "top_k", "min_p")  # fields that shape what a token is drawn from
GREEDY: Mapping[str, float] = {
    "temperature": 0.0
}  # takes the most likely token, whatever the other fields of DRAWING say


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request; an out-of-range value raises RequestError naming it.

    temperature 0 is greedy; top_k 0 or -1, top_p 1 and min_p 0 are off. `seed` None: a fresh one is drawn for the
    request and reported in its output. `stop` strings end the text before them. `logprobs` n: the drawn token's
    log-probability and the n most likely ones, from the raw logits.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] | Sequence[str] | str | None = None
    stop_token_ids: tuple[int, ...] | Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _listed("stop", self.stop, "texts", single=str))
        object.__setattr__(self, "stop_token_ids", _listed("stop_token_ids", self.stop_token_ids, "token ids"))
        self._check_types()
        self._check_ranges()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return tuple(self.stop or ())

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """`stop_token_ids` as a tuple."""
        return tuple(self.stop_token_ids or ())

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken (temperature below 1e-5)."""
        return self.temperature < 1e-5

    def _check_types(self) -> None:
        """Every value is of its field's type afterwards, other libraries' numbers among them."""
        for name in ("n", "top_k", "seed", "max_tokens", "logprobs"):
            value = getattr(self, name)
            if value is not None or name in ("n", "top_k"):
                self._set(name, whole(value), "a whole number")
        for name in ("temperature", "top_p", "min_p"):
            number = real(getattr(self, name))
            self._set(name, number if number is not None and math.isfinite(number) else None, "a finite number")
        for name in ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens"):
            value = getattr(self, name)
            self._set(name, value if isinstance(value, bool) else None, "True or False")
        for text in self.stop_strings:
            if not isinstance(text, str) or not text:
                raise RequestError(f"stop contains {text!r}.", "Stop strings must be non-empty text.", param="stop")
        ids = [whole(token) for token in self.stop_ids]
        for token, number in zip(self.stop_ids, ids, strict=True):
            if number is None or number < 0:
                raise RequestError(
                    f"stop_token_ids contains {token!r}, which is not a token id.", param="stop_token_ids"
                )
        object.__setattr__(self, "stop_token_ids", tuple(ids))

    def _set(self, name: str, value: object, kind: str) -> None:
        if value is None:
            raise RequestError(f"{name}={getattr(self, name)!r} is not {kind}.", param=name)
        object.__setattr__(self, name, value)

    def _check_ranges(self) -> None:
        def need(good: bool, name: str, what: str) -> None:
            if not good:
                raise RequestError(
                    f"{name}={getattr(self, name)!r} is out of range.", f"It must be {what}.", param=name
                )

        need(self.n == 1, "n", "1 in this version (several answers per request are not supported yet)")
        need(self.temperature >= 0, "temperature", "0 or more")
        need(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        need(self.top_k >= -1, "top_k", "-1 or 0 (off) or at least 1")
        need(0 <= self.min_p <= 1, "min_p", "between 0 and 1")
        need(self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", f"between 0 and {MAX_SEED}")
        need(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "at least 1, or None for all that fit")
        need(self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", f"between 0 and {MAX_LOGPROBS}")
        if self.stop_strings and not self.detokenize:
            raise RequestError(
                "stop needs detokenize=True.", "Use stop_token_ids, or leave detokenize on.", param="stop"
            )


def _listed(name: str, value: object, what: str, single: type | None = None) -> tuple[object, ...]:
    """None as (), one of type `single` as (it,), several as a tuple; RequestError for anything else."""
    if value is None:
        return ()
    if single is not None and isinstance(value, single):
        return (value,)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise RequestError(f"{name}={value!r} is no list of {what}.", f"Give a list of {what}.", param=name)
    return tuple(value)


def whole(value: object) -> int | None:
    """The value as an int; None where it is no whole number by type (True and 1.0 are none)."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def real(value: object) -> float | None:
    """The value as a float, also infinite or NaN; None where it is no real number by type or too large for one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
