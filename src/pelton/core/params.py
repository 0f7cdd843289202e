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
MAX_N = 1024
MAX_BIAS = 100.0
MAX_TEXTS = 256  # of stop or bad_words: building the search, and the tokens a bad word bans, cost time for each
MAX_TEXTS_CHARS = 1 << 14  # in all of them together
MAX_REPETITION = 1e4
DRAWING = ("temperature", "top_p", "top_k", "min_p")  # fields that shape what a token is drawn from
GRANULARITIES = ("token", "word", "sentence")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
GREEDY: Mapping[str, float] = {
    "temperature": 0.0
}  # takes the most likely token, whatever the other fields of DRAWING say


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request; an out-of-range value raises RequestError naming it.

    temperature 0 is greedy; top_k 0 or -1, top_p 1 and min_p 0 are off. `n` answers share the prompt. `seed` None: a
    fresh one is drawn for the request and reported in its output. `stop` strings end the text before them.
    `repetition_penalty` looks at prompt and answer, presence and frequency at the answer. `logit_bias`: token id ->
    what is added to its logit. `allowed_token_ids`: no other token is drawn. `bad_words`: texts that are not completed;
    of these and of `stop` there may be MAX_TEXTS. Before `min_tokens` tokens nothing ends the answer; `max_tokens` 0
    computes the prompt alone. `logprobs` n: the drawn token's log-probability and the n most likely ones, from the raw
    logits; `prompt_logprobs`: of the prompt's. `stream_granularity`: where the pieces of a streamed text end, one of
    GRANULARITIES.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | Sequence[int] | None = None
    bad_words: tuple[str, ...] | Sequence[str] | str | None = None
    seed: int | None = None
    stop: tuple[str, ...] | Sequence[str] | str | None = None
    stop_token_ids: tuple[int, ...] | Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    stream_granularity: str = "token"

    def __post_init__(self) -> None:
        self._set("stop", _texts("stop", self.stop), "texts")
        self._set("bad_words", _texts("bad_words", self.bad_words), "texts")
        self._set("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids), "token ids")
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids), "token ids")
        self._set("logit_bias", _biases(self.logit_bias), "token ids with numbers")
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
        for name in ("seed", "max_tokens", "logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._set(name, whole(getattr(self, name)), "a whole number")
        for name in ("n", "top_k", "min_tokens"):
            self._set(name, whole(getattr(self, name)), "a whole number")
        for name in ("temperature", "top_p", "min_p", *PENALTIES):
            number = real(getattr(self, name))
            self._set(name, number if number is not None and math.isfinite(number) else None, "a finite number")
        granularity = self.stream_granularity
        self._set("stream_granularity", granularity if isinstance(granularity, str) else None, "text")
        for name in ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens"):
            value = getattr(self, name)
            self._set(name, value if isinstance(value, bool) else None, "True or False")

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

        need(1 <= self.n <= MAX_N, "n", f"between 1 and {MAX_N}")
        need(self.temperature >= 0, "temperature", "0 or more")
        need(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        need(self.top_k >= -1, "top_k", "-1 or 0 (off) or at least 1")
        need(0 <= self.min_p <= 1, "min_p", "between 0 and 1")
        need(-2 <= self.presence_penalty <= 2, "presence_penalty", "between -2 and 2")
        need(-2 <= self.frequency_penalty <= 2, "frequency_penalty", "between -2 and 2")
        least, most_often = 1 / MAX_REPETITION, MAX_REPETITION  # beyond, logits leave fp32
        within = least <= self.repetition_penalty <= most_often
        need(within, "repetition_penalty", f"between {least:g} and {most_often:g}")
        need(self.allowed_token_ids != (), "allowed_token_ids", "a list with at least one token id")
        need(self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", f"between 0 and {MAX_SEED}")
        need(self.max_tokens is None or self.max_tokens >= 0, "max_tokens", "0 or more, or None for all that fit")
        most = self.max_tokens
        need(self.min_tokens >= 0, "min_tokens", "0 or more")
        need(most is None or self.min_tokens <= most, "min_tokens", f"at most max_tokens={most}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            need(value is None or 0 <= value <= MAX_LOGPROBS, name, f"between 0 and {MAX_LOGPROBS}")
        known = self.stream_granularity in GRANULARITIES
        need(known, "stream_granularity", "one of " + ", ".join(GRANULARITIES))
        if self.stop_strings and not self.detokenize:
            raise RequestError(
                "stop needs detokenize=True.", "Use stop_token_ids, or leave detokenize on.", param="stop"
            )


def _texts(name: str, value: object) -> tuple[object, ...]:
    """Texts as a tuple, one alone among them; RequestError for an empty one, for what is no text, and for too much."""
    texts = _listed(name, value, "texts", single=str)
    if len(texts) > MAX_TEXTS:
        raise RequestError(f"{name} has {len(texts)} texts.", f"Give at most {MAX_TEXTS}.", param=name)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise RequestError(f"{name} contains {text!r}.", f"Give non-empty text in {name}.", param=name)
    size = sum(len(text) for text in texts if isinstance(text, str))
    if size > MAX_TEXTS_CHARS:
        raise RequestError(f"{name} has {size} characters.", f"Give at most {MAX_TEXTS_CHARS} in all.", param=name)
    return texts


def _ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids as a tuple of ints; RequestError for what is none. Whether the model has them, others know."""
    ids = []
    for token in _listed(name, value, "token ids"):
        number = whole(token)
        if number is None or number < 0:
            raise RequestError(f"{name} contains {token!r}, which is not a token id.", param=name)
        ids.append(number)
    return tuple(ids)


def _biases(value: object) -> dict[int, float]:
    """Token id -> bias, keys also as text (JSON has no others); RequestError naming the first that cannot be."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias={value!r} is no table.", "Give token ids with numbers.", param="logit_bias")
    biases = {}
    for key, amount in value.items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else whole(key)
        number = real(amount)
        if token is None or token < 0:
            raise RequestError(f"logit_bias has {key!r}, which is not a token id.", param="logit_bias")
        if number is None or not abs(number) <= MAX_BIAS:
            raise RequestError(
                f"logit_bias[{token}]={amount!r} is out of range.",
                f"It must be between {-MAX_BIAS:g} and {MAX_BIAS:g}.",
                param="logit_bias",
            )
        if token in biases:
            raise RequestError(f"logit_bias has token {token} twice.", "Give it once.", param="logit_bias")
        biases[token] = number
    return biases


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
