"""Prompts, conversations and parameters as users write them, checked and made into Requests. Runs nothing.

Invariant: what comes out can run: ids are in the vocabulary, there is room for one token, a seed is drawn, and all text
is well-formed, so that it can be sent to another process.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from pelton.checkpoint.special_tokens import FimTokens
from pelton.core.clock import Clock
from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams, whole
from pelton.core.request import Request, slot_of
from pelton.engine.load.deadlines import deadline_of
from pelton.engine.texts.encoding import PromptEncoder
from pelton.engine.texts.infill import Infill
from pelton.engine.texts.names import kind_of, name_of, well_formed
from pelton.sampling.seeds import fresh_seed, seed_source
from pelton.tokenize.tokenizer import Tokenizer

T = TypeVar("T")
Prompt = str | Mapping[str, object]
Prompts = Prompt | Sequence[Prompt]
Message = Mapping[str, object]
Conversation = Sequence[Message]
SessionIds = str | list[str | None] | tuple[str | None, ...] | None
KEYS = ("prompt", "prompt_token_ids", "suffix", "cache_salt")
# What a template is given by other ways than chat_template_kwargs ("self" is Jinja's own).
RESERVED = ("messages", "add_generation_prompt", "continue_final_message", "tools", "self")
NOTHING_LEFT = "no_token_left"  # allowed and banned tokens leave nothing to draw from
LARGEST_PRIORITY = 1 << 31


def prompt_list(prompts: Prompts) -> list[Prompt]:
    """One prompt or several as a list; RequestError for what is neither."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise RequestError(f"prompts is {kind_of(prompts)}.", "Give text, a dict, or a list of these.", param="prompts")
    return list(prompts)


def params_list(params: SamplingParams | Sequence[SamplingParams], prompts: int) -> list[SamplingParams]:
    """One SamplingParams for each prompt; RequestError where a list has another length."""
    if isinstance(params, SamplingParams):
        return [params] * prompts
    if isinstance(params, str | bytes | Mapping) or not isinstance(params, Iterable):
        raise _no_params("sampling_params", params)
    given = _one_for_each("sampling_params", list(params), prompts)
    for place, one in enumerate(given):
        if not isinstance(one, SamplingParams):
            raise _no_params(f"sampling_params[{place}]", one)
    return given


def one_each(name: str, given: T | list[T] | tuple[T, ...], prompts: int) -> list[T]:
    """One of what is called `name` for each prompt; RequestError where a list has another length."""
    if isinstance(given, list | tuple):
        return _one_for_each(name, list(given), prompts)
    return [given] * prompts


def _one_for_each(name: str, given: list[T], prompts: int) -> list[T]:
    if len(given) != prompts:
        raise RequestError(
            f"There are {prompts} prompts, but {len(given)} {name}.",
            "Give one for all, or one for each.",
            param=name,
        )
    return given


def conversations(messages: object) -> list[Conversation]:
    """One conversation or several as a list; RequestError (for "messages") for what is neither, or empty."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise _no_messages("messages", messages)
    if isinstance(messages[0], Mapping):
        return [messages]
    return list(messages)


def check_conversation(messages: object) -> None:
    """RequestError (for "messages") for what is no list of messages, or an empty one."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise _no_messages("messages", messages)
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise _no_messages(f"messages[{place}]", message)


def check_template(source: object, given: object) -> None:
    """RequestError for a chat_template that is no text, or chat_template_kwargs that a template cannot be given."""
    if source is not None and not isinstance(source, str):
        raise RequestError(f"chat_template is {kind_of(source)}.", "Give its text.", param="chat_template")
    if given is None:
        return
    name = "chat_template_kwargs"
    if not isinstance(given, Mapping):
        raise RequestError(f"{name} is {kind_of(given)}.", "Give a dict of what the template is to see.", param=name)
    for key in given:
        if not isinstance(key, str):
            raise RequestError(f"{name} has the key {key!r}, which is no text.", "Name it by text.", param=name)
        if key in RESERVED:
            raise RequestError(
                f"{name} may not hold {key!r}.", f"It may hold anything but {', '.join(RESERVED)}.", param=name
            )


@contextmanager
def at_place(name: str, place: int, count: int) -> Iterator[None]:
    """A RequestError says in front which of several it is about."""
    try:
        yield
    except RequestError as error:
        where = f"{name}[{place}]: {error.cause}" if count > 1 else error.cause
        raise RequestError(where, error.remedy, param=error.param, code=error.code) from error


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """`vocab`: ids are below it; `max_len`: tokens of prompt and answer; `end_ids`: end an answer by themselves."""

    vocab: int
    max_len: int
    end_ids: frozenset[int]


class RequestMaker:
    """Makes Requests with fresh ids and seeds. `seed`: makes the drawn seeds repeatable; None: from the system.

    `priority_needs`: values of scheduling_policy that look at priorities, if the present one does not. `no_sessions`:
    why nothing is held for any, where that is so. `fim`: the model's tokens for filling in the middle. `infill` makes
    prompts that do.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: PromptLimits,
        clock: Clock,
        seed: int | None,
        *,
        priority_needs: tuple[str, ...] = (),
        no_sessions: str = "",
        fim: FimTokens | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._clock = clock
        self._seeds = seed_source(seed)
        self._priority_needs = priority_needs
        self._no_sessions = no_sessions
        self._numbers = count()
        self._encoder = PromptEncoder(tokenizer, limits.vocab, limits.max_len)
        self.infill = Infill(self._encoder, fim)

    def make_all(
        self,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams],
        *,
        priority: int | list[int] | tuple[int, ...] = 0,
        cache_salt: str = "",
        session_id: SessionIds = None,
        user: str | None = None,
        timeout: float | None = None,
    ) -> list[Request]:
        """A Request for each prompt, in order. RequestError names the first bad one's place; then none is made.

        `priority`, `session_id`: one for all, or one for each. `timeout`: seconds in which they are to be over.
        """
        listed = prompt_list(prompts)
        many = len(listed)
        urgencies, sessions = one_each("priority", priority, many), one_each("session_id", session_id, many)
        asked = zip(listed, params_list(params, many), urgencies, sessions, strict=True)
        requests = []
        for place, (prompt, one, urgency, session) in enumerate(asked):
            with at_place("prompts", place, many):
                made = self.make(prompt, one, priority=urgency, cache_salt=cache_salt, session_id=session)
                requests.append(on_terms(made, user, timeout))
        return requests

    def make(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        session_id: str | None = None,
    ) -> Request:
        """The Request for one prompt: text (special tokens in it count as such) or token ids.

        With "suffix" the answer is what stands between the two, and in both special tokens are text like any other.
        `request_id` None: the next number. A smaller `priority` is more urgent; where the order of requests does not
        look at it, it has to be 0. RequestError for what cannot run; its code is context_length_exceeded for a prompt
        that leaves no room.
        """
        if not isinstance(params, SamplingParams):
            raise _no_params("sampling_params", params)
        text, ids = self._read(prompt)
        if not ids:
            raise RequestError("The prompt is empty.", "Give at least one token.", param="prompt")
        if len(ids) >= self._limits.max_len:
            raise self._encoder.too_long(f"{len(ids)} tokens", "prompt")
        room = self._limits.max_len - len(ids)
        self._check_params(params, room)
        salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
        if params.seed is None:
            params = replace(params, seed=fresh_seed(self._seeds))
        ends = frozenset(params.stop_ids)
        if not params.ignore_eos:
            ends |= self._limits.end_ids | (self.infill.ends if _suffix(prompt) else frozenset())
        bad_words = self._bad_words(params)
        _expect_choice(params, ends, bad_words)
        return Request(
            request_id=str(next(self._numbers)) if request_id is None else well_formed("request_id", request_id),
            prompt_token_ids=ids,
            params=params,
            stop_token_ids=ends,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            arrival=self._clock.now(),
            prompt=text,
            priority=self._priority(priority),
            bad_word_ids=bad_words,
            cache_salt=well_formed("cache_salt", cache_salt if salt is None else salt),
            session_id=self._session(session_id),
        )

    def _check_params(self, params: SamplingParams, room: int) -> None:
        """RequestError for what no model of this vocabulary and length can do; SamplingParams knows neither."""
        if params.min_tokens > room:
            raise RequestError(
                f"min_tokens={params.min_tokens} is more than the {room} tokens for which there is room.",
                f"Set at most {room}, or shorten the prompt.",
                param="min_tokens",
            )
        named = {
            "stop_token_ids": params.stop_ids,
            "allowed_token_ids": params.allowed_token_ids or (),
            "logit_bias": params.logit_bias or {},
        }
        for name, ids in named.items():
            for token in ids:
                if token >= self._limits.vocab:
                    raise RequestError(
                        f"{name} has token {token}, and the model has only {self._limits.vocab} tokens.",
                        f"Ids are whole numbers from 0 to {self._limits.vocab - 1}.",
                        param=name,
                    )
        for text in params.stop_strings:
            well_formed("stop", text)

    def _priority(self, value: object) -> int:
        number = whole(value)
        if number is None or not -LARGEST_PRIORITY <= number < LARGEST_PRIORITY:
            raise RequestError(f"priority={value!r} is not a whole number of 32 bits.", param="priority")
        if number and self._priority_needs:
            raise RequestError(
                f"priority={number} would have no effect.",
                f"Leave it out, or start the engine with scheduling_policy={' or '.join(self._priority_needs)}.",
                param="priority",
            )
        return number

    def _session(self, value: object) -> str:
        name = name_of("session_id", value)
        if name and self._no_sessions:
            slot = slot_of(name)
            param, given = ("session_id", repr(name[:60])) if slot is None else ("id_slot", slot)
            cause = f"{param}={given} would have no effect: {self._no_sessions}."
            raise RequestError(cause, "Leave it out.", param=param)
        return name

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Each bad word's ids at the start of a text and behind a space: most vocabularies spell the two differently.

        What the model has no token for, it cannot say.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in params.bad_words or ():
            bare = word.lstrip() or word
            for form in (bare, " " + bare):
                ids = tuple(self._tokenizer.encode(form, special=True, param="bad_words"))
                if ids and max(ids) < self._limits.vocab:
                    found[ids] = None
        return tuple(found)

    def encode(self, text: str, *, bos: bool, param: str) -> tuple[int, ...]:
        """Token ids of a text, in which special tokens count as such; with `bos` the model's first token in front.

        RequestError (for `param`) for a text that cannot fit, before time is spent on it, and for one that needs a
        token the model does not have.
        """
        return self._encoder.encode(text, bos=bos, param=param)

    def _read(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        """(text where given, token ids)."""
        if isinstance(prompt, str):
            return prompt, self.encode(prompt, bos=True, param="prompt")
        if not isinstance(prompt, Mapping):
            raise RequestError(
                f"A prompt is {kind_of(prompt)}.",
                'Give text, or token ids as {"prompt_token_ids": [...]}.',
                param="prompt",
            )
        for key in prompt:
            if key not in KEYS:
                raise RequestError(f"A prompt has no key {key!r}.", f"Known: {', '.join(KEYS)}.", param="prompt")
        text = prompt.get("prompt")
        if text is not None:
            text = well_formed("prompt", text)
        ids = None
        if prompt.get("prompt_token_ids") is not None:
            ids = self._checked(prompt["prompt_token_ids"])
        if suffix := _suffix(prompt):
            return text, self.infill.whole(text or "" if ids is None else ids, suffix)
        if ids is not None:
            return text, ids
        if text is None:
            raise RequestError("A prompt has neither prompt nor prompt_token_ids.", param="prompt")
        return self._read(text)

    def _checked(self, ids: object) -> tuple[int, ...]:
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise RequestError(f"prompt_token_ids is {kind_of(ids)}, not a list of ids.", param="prompt_token_ids")
        if isinstance(ids, Sized) and len(ids) >= self._limits.max_len:
            raise self._encoder.too_long(f"{len(ids)} tokens", "prompt")
        return tuple(self._checked_id(place, value) for place, value in enumerate(ids))

    def _checked_id(self, place: int, value: object) -> int:
        token = whole(value)
        if token is None or not 0 <= token < self._limits.vocab:
            raise RequestError(
                f"prompt_token_ids[{place}]={value!r} is not a token id.",
                f"Ids are whole numbers from 0 to {self._limits.vocab - 1}.",
                param="prompt_token_ids",
            )
        return token


def on_terms(request: Request, user: object, timeout: object) -> Request:
    """The request as this user's, which may take so many seconds (None: any time). RequestError for what cannot be."""
    return replace(request, owner=name_of("user", user), deadline=deadline_of(request.arrival, timeout))


def _expect_choice(params: SamplingParams, ends: frozenset[int], bad_words: tuple[tuple[int, ...], ...]) -> None:
    """RequestError where the first draw would find no token among the allowed ones; later ones the engine finds out."""
    if params.allowed_token_ids is None:
        return
    banned = {word[0] for word in bad_words if len(word) == 1}
    if params.min_tokens:
        banned |= ends
    if banned.issuperset(params.allowed_token_ids):
        raise RequestError(
            "allowed_token_ids has no token that may come first: bad_words or min_tokens exclude all.",
            "Allow one that neither ends the answer nor is a bad word.",
            param="allowed_token_ids",
            code=NOTHING_LEFT,
        )


def _suffix(prompt: Prompt) -> str:
    """What is to stand behind the answer; empty where that is open."""
    given = prompt.get("suffix") if isinstance(prompt, Mapping) else None
    return "" if given is None else well_formed("suffix", given)


def _no_params(name: str, value: object) -> RequestError:
    return RequestError(f"{name} is {kind_of(value)}.", "Give SamplingParams.", param="sampling_params")


def _no_messages(name: str, value: object) -> RequestError:
    what = "empty" if isinstance(value, Sequence) and not value else kind_of(value)
    return RequestError(
        f"{name} is {what}.", 'Give a list of messages such as {"role": "user", "content": "..."}.', param="messages"
    )
