"""Prompts and parameters as users write them, checked and made into Requests. Runs nothing.

Invariant: what comes out can run: ids are in the vocabulary, there is room for one token, and a seed is drawn.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count

from pelton.core.clock import Clock
from pelton.core.errors import CheckpointError, RequestError
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.sampling.seeds import fresh_seed, seed_source
from pelton.tokenize.tokenizer import Tokenizer

Prompt = str | Mapping[str, object]
Prompts = Prompt | Sequence[Prompt]
KEYS = ("prompt", "prompt_token_ids")
NOT_RECOMMENDED = {"n", "seed", "logprobs"}  # a request's own business, whatever a model's file says


def prompt_list(prompts: Prompts) -> list[Prompt]:
    """One prompt or several as a list; RequestError for what is neither."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise RequestError(f"prompts is {_kind(prompts)}.", "Give text, a dict, or a list of these.", param="prompts")
    return list(prompts)


def params_list(params: SamplingParams | Sequence[SamplingParams], prompts: int) -> list[SamplingParams]:
    """One SamplingParams for each prompt; RequestError where a list has another length."""
    if isinstance(params, SamplingParams):
        return [params] * prompts
    given = list(params)
    if len(given) != prompts:
        raise RequestError(
            f"There are {prompts} prompts, but {len(given)} sampling_params.",
            "Give one for all, or one for each.",
            param="sampling_params",
        )
    for place, one in enumerate(given):
        if not isinstance(one, SamplingParams):
            raise RequestError(f"sampling_params[{place}] is {_kind(one)}.", param="sampling_params")
    return given


def default_params(generation_config: Mapping[str, object]) -> SamplingParams:
    """SamplingParams with what the model recommends; a missing or null key leaves the general default.

    Raises CheckpointError for a recommendation that no request could have.
    """
    names = {field.name for field in fields(SamplingParams)} - NOT_RECOMMENDED
    values = {name: generation_config[name] for name in names if generation_config.get(name) is not None}
    limit = generation_config.get("max_new_tokens")
    if limit is not None:
        values["max_tokens"] = limit
    try:
        return SamplingParams(**values)  # type: ignore[arg-type]
    except RequestError as error:
        raise CheckpointError(f"generation_config.json: {error.cause}", "Correct it or remove the key.") from error


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """`vocab`: ids are below it; `max_len`: tokens of prompt and answer; `end_ids`: end an answer by themselves."""

    vocab: int
    max_len: int
    end_ids: frozenset[int]


class RequestMaker:
    """Makes Requests with fresh ids and seeds. `seed`: makes the drawn seeds repeatable; None: from the system."""

    def __init__(self, tokenizer: Tokenizer, limits: PromptLimits, clock: Clock, seed: int | None) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._clock = clock
        self._seeds = seed_source(seed)
        self._numbers = count()

    def make_all(self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams]) -> list[Request]:
        """A Request for each prompt, in order. RequestError names the first bad one's place; then none is made."""
        listed = prompt_list(prompts)
        requests = []
        for place, (prompt, one) in enumerate(zip(listed, params_list(params, len(listed)), strict=True)):
            try:
                requests.append(self.make(prompt, one))
            except RequestError as error:
                where = f"prompts[{place}]: {error.cause}" if len(listed) > 1 else error.cause
                raise RequestError(where, error.remedy, param=error.param) from error
        return requests

    def make(self, prompt: Prompt, params: SamplingParams) -> Request:
        """The Request for one prompt: text (special tokens in it count as such) or token ids."""
        text, ids = self._read(prompt)
        room = self._limits.max_len - len(ids)
        if not ids:
            raise RequestError("The prompt is empty.", "Give at least one token.", param="prompt")
        if room < 1:
            raise RequestError(
                f"The prompt has {len(ids)} tokens; with its answer it may have {self._limits.max_len}.",
                f"Shorten it to at most {self._limits.max_len - 1} tokens.",
                param="prompt",
            )
        if params.seed is None:
            params = replace(params, seed=fresh_seed(self._seeds))
        ends = frozenset() if params.ignore_eos else self._limits.end_ids
        return Request(
            request_id=str(next(self._numbers)),
            prompt_token_ids=ids,
            params=params,
            stop_token_ids=ends | frozenset(params.stop_ids),
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            arrival=self._clock.now(),
            prompt=text,
        )

    def _read(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        """(text where given, token ids)."""
        if isinstance(prompt, str):
            return prompt, tuple(self._tokenizer.encode_prompt(prompt, special=True))
        if not isinstance(prompt, Mapping):
            raise RequestError(
                f"A prompt is {_kind(prompt)}.",
                'Give text, or token ids as {"prompt_token_ids": [...]}.',
                param="prompt",
            )
        for key in prompt:
            if key not in KEYS:
                raise RequestError(f"A prompt has no key {key!r}.", f"Known: {', '.join(KEYS)}.", param="prompt")
        text = prompt.get("prompt")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"prompt is {_kind(text)}, not text.", param="prompt")
        if prompt.get("prompt_token_ids") is not None:
            return text, self._checked(prompt["prompt_token_ids"])
        if text is None:
            raise RequestError("A prompt has neither prompt nor prompt_token_ids.", param="prompt")
        return self._read(text)

    def _checked(self, ids: object) -> tuple[int, ...]:
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise RequestError(f"prompt_token_ids is {_kind(ids)}, not a list of ids.", param="prompt_token_ids")
        return tuple(self._checked_id(place, value) for place, value in enumerate(ids))

    def _checked_id(self, place: int, value: object) -> int:
        try:
            token = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            token = -1
        if not 0 <= token < self._limits.vocab:
            raise RequestError(
                f"prompt_token_ids[{place}]={value!r} is not a token id.",
                f"Ids are whole numbers from 0 to {self._limits.vocab - 1}.",
                param="prompt_token_ids",
            )
        return token


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"
