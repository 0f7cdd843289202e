"""The body and the answers of /infill: names and shapes are those of llama.cpp's server.

A field of its body that takes no effect here stands in HINTS or is refused. Invariant: what was left out of an answer
by the client's own wish (`response_fields`) is all that is missing.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pelton.core.errors import RequestError
from pelton.core.params import MAX_BIAS, MAX_REPETITION, MAX_SEED, SamplingParams, whole
from pelton.serve.schema.fields import SEEDS, Penalty, SlotNumber, Texts, TopCount
from pelton.serve.schema.json_text import Json

# About the way an answer is made, not about what it is: told as ignored, so that editors' plugins work as they are.
HINTS = frozenset(
    "n_cache_reuse n_discard n_indent n_keep return_progress samplers sse_ping_interval t_max_predict_ms "
    "t_max_prompt_ms timings_per_token".split()
)
# llama.cpp's own, which its clients count on where nobody says anything.
GENERAL: Mapping[str, object] = {"max_tokens": None, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
SAME = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos")  # names
BIASES = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "number"}},
        {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}},
    ]
}
NONE, EOS, LIMIT, WORD = "none", "eos", "limit", "word"  # stop_type


class OtherFile(msgspec.Struct, kw_only=True):
    """A piece of another file."""

    text: str
    filename: str = "tmp"


class InfillFields(msgspec.Struct, kw_only=True):
    """A body of /infill. Defaults are in docs/http.md."""

    input_prefix: str
    input_suffix: str
    input_extra: list[OtherFile] | None = None
    prompt: str | None = None
    model: str | None = None
    stream: bool | None = None
    n_predict: Annotated[int, Meta(ge=-1, description="-1: all that fit.")] | None = None
    n_probs: TopCount | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=MAX_REPETITION)] | None = None
    logit_bias: Annotated[Json, Meta(extra_json_schema=BIASES)] = None
    seed: Annotated[int, Meta(ge=-1, description="-1: a fresh one.", extra_json_schema=SEEDS)] | None = None
    stop: str | Texts | None = None
    ignore_eos: bool | None = None
    return_tokens: bool | None = None
    cache_prompt: bool | None = None
    id_slot: SlotNumber | None = None
    response_fields: list[str] | None = None


class Candidate(msgspec.Struct):
    """One of the likeliest tokens at a place."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class Place(msgspec.Struct):
    """The drawn token at a place, and the likeliest ones."""

    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[Candidate]


class Timings(msgspec.Struct):
    """Milliseconds of the prompt (what the cache gave left out) and of the answer behind its first token."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class InfillChunk(msgspec.Struct):
    """One event of an answer that streams, but for the last."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[Place] | UnsetType = UNSET


class InfillAnswer(msgspec.Struct):
    """The whole answer, or the last event of one that streams, whose content came before."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    generation_settings: dict[str, Json]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    timings: Timings
    completion_probabilities: list[Place] | UnsetType = UNSET


def sampling_given(fields: InfillFields) -> dict[str, object]:
    """The fields that SamplingParams has too, by its names; what was not given is left out.

    RequestError for what can be no bias, and for a seed beyond what there is.
    """
    if fields.seed is not None and fields.seed > MAX_SEED:
        remedy = f"It must be between 0 and {MAX_SEED}, or -1 for a fresh one."
        raise RequestError(f"seed={fields.seed} is out of range.", remedy, param="seed")
    given: dict[str, object] = {
        **{name: value for name, value in msgspec.structs.asdict(fields).items() if name in SAME},
        "repetition_penalty": fields.repeat_penalty,
        "seed": None if fields.seed == -1 else fields.seed,
        "stop": fields.stop,
        "max_tokens": None if fields.n_predict == -1 else fields.n_predict,
        "logprobs": fields.n_probs or None,
        "logit_bias": _biases(fields.logit_bias),
    }
    return {name: value for name, value in given.items() if value is not None}


def settings_told(params: SamplingParams) -> dict[str, Json]:
    """What took effect, by llama.cpp's names."""
    values = asdict(params)
    return {
        **{name: values[name] for name in SAME},
        "repeat_penalty": params.repetition_penalty,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in (params.logit_bias or {}).items()],
        "stop": list(params.stop_strings),
        "n_probs": params.logprobs or 0,
    }


def _biases(value: Json) -> Json:
    """A table, or a list of pairs of a token id and a number or false (never); RequestError for what is neither."""
    if value is None:
        return value
    if isinstance(value, Mapping):
        for token, bias in value.items():
            if not _is_number(bias):
                raise _bad_bias({token: bias})
        return value
    if not isinstance(value, list):
        raise _bad_bias(value)
    table = {}
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or whole(pair[0]) is None:
            raise _bad_bias(pair)
        bias = -MAX_BIAS if pair[1] is False else pair[1]
        if not _is_number(bias):
            raise _bad_bias(pair)
        table[pair[0]] = bias
    return table


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bad_bias(value: Json) -> RequestError:
    return RequestError(
        f"logit_bias holds {str(value)[:60]!r}, which is no pair of a token id and a number.",
        "Give pairs such as [15043, 1.0], or a table.",
        param="logit_bias",
    )


def chosen(answer: Json, paths: list[str]) -> dict[str, Json]:
    """The fields of these names; `a/b` is the field b inside a, under the name "a/b". Missing ones are left out."""
    found = {}
    for path in paths:
        value = answer
        for name in path.split("/"):
            value = value.get(name, UNSET) if isinstance(value, Mapping) else UNSET
        if value is not UNSET:
            found[path] = value
    return found
