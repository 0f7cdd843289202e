"""Prompts of a file as the token ids that the engine would be given for them. It runs no model."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pelton.core.clock import FakeClock
from pelton.core.errors import RequestError, SettingError
from pelton.core.params import SamplingParams
from pelton.engine.front import Front
from pelton.engine.prompts import Prompt, PromptLimits, RequestMaker, check_conversation
from pelton.measure.bench.workload import PROMPT_FORM, TokenIds, json_lines, prompt_key


def prompt_ids(path: Path, front: Front, limits: PromptLimits, told: Callable[[], object]) -> list[TokenIds]:
    """Of each line of the file, in order; `told` is called behind each. SettingError naming the line that holds no
    prompt for this model.
    """
    if not path.is_file():
        raise SettingError(f"--prompts {path} is no file.", "Name one with a JSON object a line.")
    maker, found = front.maker(limits, FakeClock()), []
    for number, row in enumerate(json_lines(path, f"--prompts {path}"), 1):
        try:
            found.append(_ids(row, front, maker))
        except RequestError as error:
            raise SettingError(f"--prompts {path}: prompt {number}: {error.cause}", error.remedy) from error
        told()
    if not found:
        raise SettingError(f"--prompts {path} has no prompts.", PROMPT_FORM)
    return found


def _ids(row: Mapping[str, object], front: Front, maker: RequestMaker) -> TokenIds:
    try:
        key = prompt_key(row)
    except ValueError as error:
        raise RequestError(f"It {error}.", PROMPT_FORM) from error
    prompt: Prompt = {key: row[key]}
    if key == "messages":
        messages = row[key]
        check_conversation(messages)
        assert isinstance(messages, list)
        text = front.template().render(messages)
        prompt = {"prompt_token_ids": maker.encode(text, bos=False, param="messages")}
    return maker.make(prompt, SamplingParams(max_tokens=1, seed=0)).prompt_token_ids
