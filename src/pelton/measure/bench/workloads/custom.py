"""The user's own traffic: a file with one JSON object a line, or one JSON table of lists of prompts.

A line has "prompt" (text), "prompt_token_ids" or "messages", and may have "output_len".
"""

import json
from collections.abc import Mapping
from pathlib import Path

from pelton.core.errors import SettingError
from pelton.core.params import whole
from pelton.measure.bench.workload import PROMPT_FORM, Sample, WorkloadOptions, json_lines, prompt_key, text_of

OUTPUT_LEN = 128


class Custom:
    """The file's lines in order, from the first again when it has fewer than are asked for."""

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        if options.path is None:
            raise SettingError("The custom workload needs a file.", "Name it by --dataset-path.")
        made = [_sample(options, row, number) for number, row in enumerate(_rows(options.path), 1)]
        if not made:
            raise SettingError(f"--dataset-path {options.path} has no prompts.")
        return [made[place % len(made)] for place in range(options.count)]


def _rows(path: Path) -> list[Mapping[str, object]]:
    """`path` may end in #NAME, which picks one list of a table of lists."""
    file, _, name = str(path).partition("#")
    called = f"--dataset-path {file}"
    if not Path(file).is_file():
        raise SettingError(f"{called} is no file.", "Name one with a JSON object a line.")
    if not name:
        return list(json_lines(Path(file), called))
    try:
        table = json.loads(text_of(Path(file), called))
    except ValueError as error:
        raise SettingError(f"{called} is no JSON: {error}.") from error
    if not isinstance(table, dict) or not isinstance(table.get(name), list):
        known = ", ".join(table) if isinstance(table, dict) else "none"
        raise SettingError(f"{called} has no list {name!r}.", f"It has: {known}.")
    return [{"prompt": prompt} for prompt in table[name]]


def _sample(options: WorkloadOptions, row: Mapping[str, object], number: int) -> Sample:
    length = options.output_len or whole(row.get("output_len")) or OUTPUT_LEN
    where = f"--dataset-path {options.path}: request {number}"
    try:
        key = prompt_key(row)
    except ValueError as error:
        raise SettingError(f"{where} {error}.", PROMPT_FORM) from error
    given = row[key]
    if key == "prompt" and isinstance(given, str):
        return Sample(length, prompt=given)
    if key == "prompt_token_ids" and isinstance(given, list) and all(isinstance(token, int) for token in given):
        return Sample(length, prompt=tuple(given))
    if key == "messages" and isinstance(given, list):
        return Sample(length, messages=tuple(given))
    raise SettingError(f"{where} has a {key} that is none.", PROMPT_FORM)
