"""What two forms of one model make of a text, token by token: perplexity, and how often they would choose alike.

Windows are scored by the engine as prompts, as for perplexity.py. It draws nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams
from pelton.core.request import RequestOutput
from pelton.engine.llm import LLM
from pelton.measure.perplexity import HF, Plan, Tally, text_ids, windows

SIZE = 512  # tokens of a window, or what the model takes
LIKELIEST = SamplingParams(max_tokens=0, prompt_logprobs=1, detokenize=False)


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the tokens that count, in their order: sums of negative log-probabilities, and the likeliest token's id."""

    tally: Tally
    likeliest: tuple[int, ...]


def score(llm: LLM, text: str, told: Callable[[int, int], None]) -> Scores:
    """Scores the text in disjoint windows; `told` hears how many are done, of how many.

    RequestError for a text too short.
    """
    tokenizer = llm.get_tokenizer()
    size = min(SIZE, llm.report.max_model_len - 1)
    plan = Plan(size, size, HF, tokenizer.add_bos)
    listed = windows(text_ids(tokenizer, text, plan), plan)
    tally, likeliest = Tally(), []
    for done, window in enumerate(listed, 1):
        (output,) = llm.generate({"prompt_token_ids": window.ids}, LIKELIEST, use_tqdm=False)
        nats, best = _scored(output, window.first)
        tally.add(nats)
        likeliest += best
        told(done, len(listed))
    return Scores(tally, tuple(likeliest))


def agreement(one: Scores, other: Scores) -> float:
    """The share of tokens before which both find the same one likeliest; nan without tokens."""
    pairs = list(zip(one.likeliest, other.likeliest, strict=True))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else float("nan")


def _scored(output: RequestOutput, first: int) -> tuple[list[float], list[int]]:
    if output.error is not None or output.prompt_logprobs is None:
        raise RequestError(f"The text could not be scored: {output.error}.", param="text")
    nats, best = [], []
    for token, entry in zip(output.prompt_token_ids[first:], output.prompt_logprobs[first:], strict=True):
        assert entry is not None
        nats.append(-entry[token].logprob)
        best.append(min(entry, key=lambda found: (-entry[found].logprob, found)))
    return nats, best
