"""Cases: a prompt and a way to choose its answer's tokens. They are made into Requests here; nothing runs.

Invariant: a case says everything its answer depends on, its seed among it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from pelton.core.config import BLOCK_TOKENS
from pelton.core.params import SamplingParams
from pelton.core.request import Request


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids under a name."""

    name: str
    token_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    def alike(self, other: "Prompt") -> bool:
        """Whether they begin with the same block of tokens, or one with the whole other."""
        length = min(BLOCK_TOKENS, len(self), len(other))
        return self.token_ids[:length] == other.token_ids[:length]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to choose tokens. `fields` are those of SamplingParams; `ends`: the model's end tokens end the answer.

    `bans`: the prompt's last two tokens must not follow each other in the answer, as a bad word.
    """

    name: str
    fields: Mapping[str, object] = field(default_factory=dict, hash=False)
    ends: bool = False
    bans: bool = False

    @property
    def greedy(self) -> bool:
        return self.fields.get("temperature") == 0

    @property
    def scores(self) -> bool:
        """Whether log-probabilities of the prompt are asked for."""
        return self.fields.get("prompt_logprobs") is not None


WAYS: tuple[Way, ...] = (
    Way("greedy", {"temperature": 0}),
    Way("greedy with log-probabilities", {"temperature": 0, "logprobs": 3}, ends=True),
    Way(
        "greedy with penalties",
        {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3, "logprobs": 1},
        bans=True,
    ),
    Way("greedy with a scored prompt", {"temperature": 0, "logprobs": 2, "prompt_logprobs": 1}),
    Way("seeded", {"temperature": 1.0, "top_p": 0.9, "logprobs": 0}),
    Way("seeded from all tokens", {"temperature": 1.0}, ends=True),
    Way("seeded from few tokens", {"temperature": 1.4, "top_k": 40, "min_p": 0.02, "logprobs": 2}),
    Way(
        "seeded with penalties",
        {
            "temperature": 0.9,
            "top_p": 0.95,
            "frequency_penalty": 0.8,
            "presence_penalty": 0.5,
            "repetition_penalty": 1.1,
            "min_tokens": 8,
            "logit_bias": {5: 2.0, 11: -3.0},
            "logprobs": 0,
        },
        ends=True,
        bans=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt answered in one way, with this seed."""

    prompt: Prompt
    way: Way
    seed: int


@dataclass(frozen=True, slots=True)
class Cases:
    """All prompts and ways. `max_tokens` of every answer; `end_ids` are the model's end tokens."""

    prompts: tuple[Prompt, ...]
    ways: tuple[Way, ...]
    max_tokens: int
    end_ids: frozenset[int] = frozenset()

    def case(self, prompt: Prompt, way: Way) -> Case:
        """The case with its own seed, which depends on the names of both alone."""
        return Case(prompt, way, Random(f"{prompt.name}\n{way.name}").getrandbits(63))

    def other_prompts(self, prompt: Prompt, rng: Random, most: int) -> list[Prompt]:
        """Different prompts, at most so many, that do not begin like this one."""
        others = [other for other in self.prompts if not other.alike(prompt)]
        return rng.sample(others, min(most, len(others)))

    def relative(self, prompt: Prompt, rng: Random) -> Prompt:
        """The prompt itself, or another one that begins like it."""
        return rng.choice([other for other in self.prompts if other.alike(prompt)])

    def shareable_way(self, rng: Random, *, greedy: bool | None = None) -> Way:
        """A way of which the prompt may come from blocks that others computed; greedy or seeded where that is said."""
        fitting = [way for way in self.ways if greedy in (None, way.greedy) and not way.scores]
        return rng.choice(fitting)

    def requests(self, case: Case, request_id: str, n: int, salt: str = "", session: str = "") -> tuple[Request, ...]:
        """The sequences of one request for n answers."""
        fields = dict(case.way.fields)
        if "min_tokens" in fields:
            fields["min_tokens"] = self.max_tokens // 3
        params = SamplingParams(
            **fields,  # type: ignore[arg-type]
            n=n,
            seed=case.seed,
            max_tokens=self.max_tokens,
            detokenize=False,
            ignore_eos=not case.way.ends,
        )
        ids = case.prompt.token_ids
        request = Request(
            request_id=request_id,
            prompt_token_ids=ids,
            params=params,
            stop_token_ids=self.end_ids if case.way.ends else frozenset(),
            max_tokens=self.max_tokens,
            arrival=0.0,
            bad_word_ids=(ids[-2:],) if case.way.bans and len(ids) > 1 else (),
            cache_salt=salt,
            session_id=session,
        )
        return request.children()

    def alone(self, case: Case, child: int) -> Request:
        """The n-th answer's request as one that knows of no others."""
        (request,) = self.requests(case, "alone", 1)
        return replace(request, child=child)
