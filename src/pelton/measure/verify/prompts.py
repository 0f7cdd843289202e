"""Prompts to verify with: a small varied set of our own, and a user's from a file of JSON lines.

Texts are cut, or repeated, to lengths in tokens around the borders of KV blocks. Invariant: no prompt is empty.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pelton.core.errors import RequestError
from pelton.measure.verify.cases import Prompt

TextIds = Callable[[str], Sequence[int]]
MessageIds = Callable[[Sequence[Mapping[str, object]]], Sequence[int]]

STORY = (
    "The lighthouse keeper had not spoken to anyone for eleven days when the boat came in. It carried two barrels of "
    "lamp oil, a sack of flour, a letter from his sister and a boy of nine who said that he had been sent to learn. "
    "The keeper read the letter twice, looked at the boy, and asked whether he was afraid of stairs. There were two "
    "hundred and twelve of them, and the lamp had to be wound every four hours, also at night."
)
CHINESE = (
    "清晨的集市上,卖豆腐的老人总是第一个到。他把木板擦干净,摆好秤,然后坐下来听收音机里的天气预报。"
    "今天说下午有雨,气温十八度。邻摊的姑娘问他为什么从不涨价,他笑着说:豆子没有涨,水也没有涨,我凭什么涨呢?"
)
CODE = '''def merge(left: list[int], right: list[int]) -> list[int]:
    """Both lists are sorted; so is the result."""
    merged, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]
'''
REPEATED = "one two three, one two three, one two three, and turn; "
QUESTION = "Q: A train leaves at 9:40 and arrives at 13:05. How long does it take?\nA:"
SYSTEM = (
    "You answer questions about a public library. It opens at nine and closes at seven, on Saturdays at one; on "
    "Sundays it is closed. A card is free for people under eighteen and costs twelve a year for everybody else. Books "
    "may be kept for four weeks and twice extended, films for one week. Whoever loses a book pays its price or brings "
    "another copy. Rooms for groups can be booked for two hours a day. Answer briefly; say so if you do not know.\n\n"
)
QUESTIONS = (
    "How long may I keep a film, and can I extend it?",
    "My brother is seventeen and wants to borrow four novels. What does he have to pay?",
    "Can six of us meet there on Saturday at noon for two hours?",
)
WINDOW_REACHED = 1024  # a prompt as long as a greater window takes too long for a check that one waits for
BEYOND = 45  # tokens: more than a block
SHARED = 96  # tokens that the questions to SYSTEM have in common
# name, text, tokens
TEXTS: tuple[tuple[str, str, int], ...] = (
    ("question", QUESTION, 20),
    ("code, one token less than a block", CODE, 31),
    ("Chinese, a block", CHINESE, 32),
    ("story, one token more than a block", STORY, 33),
    ("Chinese, between two borders", CHINESE, 50),
    ("code, two blocks", CODE, 64),
    ("story, one token more than two blocks", STORY, 65),
    ("code, long", CODE, 109),
    ("repeated", REPEATED, 150),
)


def built_in(encode: TextIds, windows: Iterable[int] = ()) -> list[Prompt]:
    """Our own prompts in a model's tokens, some of them longer than those `windows` that are not too long."""
    prompts = [Prompt(name, _fitted(encode(text), length)) for name, text, length in TEXTS]
    reached = [window for window in windows if window <= WINDOW_REACHED]
    for window in reached:
        prompts.append(Prompt(f"story, beyond a window of {window}", _fitted(encode(STORY), window + BEYOND)))
    shared = _fitted(encode(SYSTEM), SHARED)
    for number, question in enumerate(QUESTIONS, 1):
        prompts.append(Prompt(f"library {number}", (*shared, *_fitted(encode(question), 9 + 5 * number))))
    return prompts


def _fitted(ids: Sequence[int], length: int) -> tuple[int, ...]:
    """Exactly so many tokens of a text that is repeated where it is too short."""
    assert ids, "a text of ours became no token"
    return tuple(ids[place % len(ids)] for place in range(length))


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Reads lines of {"prompt": text}, {"messages": [...]} or {"prompt_token_ids": [...]}."""

    text_ids: TextIds
    message_ids: MessageIds

    def read(self, lines: Iterable[str], source: str) -> list[Prompt]:
        """A prompt for each line that is not blank. RequestError naming `source` and the line for one that is none."""
        prompts = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                ids = self._ids(line)
            except RequestError as error:
                raise RequestError(f"{source}, line {number}: {error.cause}", error.remedy, param="prompts") from error
            prompts.append(Prompt(f"line {number}", ids))
        if not prompts:
            raise RequestError(f"{source} has no prompt.", 'Write lines such as {"prompt": "Once upon a time"}.')
        return prompts

    def _ids(self, line: str) -> tuple[int, ...]:
        remedy = 'Write {"prompt": ...}, {"messages": [...]} or {"prompt_token_ids": [...]}.'
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise RequestError(f"this is no JSON ({error}).", remedy) from error
        known = ("prompt", "messages", "prompt_token_ids")
        if not isinstance(entry, dict) or sum(name in entry for name in known) != 1:
            raise RequestError(f"this has not exactly one of {', '.join(known)}.", remedy)
        if "prompt" in entry:
            if not isinstance(entry["prompt"], str):
                raise RequestError("prompt is no text.", remedy)
            ids = tuple(self.text_ids(entry["prompt"]))
        elif "messages" in entry:
            ids = tuple(self.message_ids(entry["messages"]))
        else:
            ids = _listed_ids(entry["prompt_token_ids"])
        if not ids:
            raise RequestError("the prompt is empty.", "Give at least one token.")
        return ids


def _listed_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(token) is not int or token < 0 for token in value):
        raise RequestError("prompt_token_ids is no list of token ids.", "Ids are whole numbers from 0 on.")
    return tuple(value)


def check_prompts(prompts: Iterable[Prompt], *, vocab: int, longest: int) -> None:
    """RequestError for a prompt with more than `longest` tokens, or a token that the model does not have."""
    for prompt in prompts:
        if len(prompt) > longest:
            raise RequestError(
                f"The prompt of {prompt.name} has {len(prompt)} tokens, and there is room for {longest}.",
                "Shorten it, or lower max_tokens.",
                param="prompts",
            )
        outside = next((token for token in prompt.token_ids if token >= vocab), None)
        if outside is not None:
            raise RequestError(
                f"The prompt of {prompt.name} has token {outside}, and the model has {vocab} tokens.",
                "Use ids of this model.",
                param="prompts",
            )


def clipped(prompts: Iterable[Prompt], longest: int) -> list[Prompt]:
    """The prompts, cut to this many tokens where they are longer."""
    return [Prompt(prompt.name, prompt.token_ids[:longest]) for prompt in prompts]
