"""JSON lines in the form of Mooncake's traces: timestamp (ms), input_length, output_length, and hash_ids, which may be
missing: of each piece of 512 tokens of the prompt an id, that two prompts have in common as far as they are the same.
"""

import json

from pelton.measure.simulate.trace import Call, Source, Trace, counted, in_order

PIECE = 512
FORM = 'Write it like {"timestamp": 0, "input_length": 800, "output_length": 50}.'


class Mooncake:
    """The first timestamp is the beginning. A piece's id may not name two different places of prompts."""

    def claims(self, first: str) -> bool:
        return first.lstrip().startswith("{") and '"input_length"' in first

    def read(self, source: Source) -> Trace:
        source.no_parts()
        calls = in_order([_call(source, number, line) for number, line in source.lines])
        first = calls[0].at
        return Trace(tuple(Call(call.at - first, call.prompt, call.output, call.pieces) for call in calls), piece=PIECE)


def _call(source: Source, number: int, line: str) -> Call:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise source.error(number, f"no JSON: {error}", FORM) from error
    if not isinstance(row, dict):
        raise source.error(number, "no JSON object", FORM)
    at, pieces = row.get("timestamp", 0), row.get("hash_ids", [])
    prompt, output = counted(row.get("input_length")), counted(row.get("output_length"))
    if not prompt or output is None:
        raise source.error(number, "input_length and output_length must be numbers of tokens", FORM)
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < float("inf"):
        raise source.error(number, f"timestamp {at!r} is no number of milliseconds", FORM)
    if not isinstance(pieces, list) or not all(type(one) is int and one >= 0 for one in pieces):
        raise source.error(number, "hash_ids must be whole numbers from 0 on", FORM)
    if pieces and len(pieces) != -(-prompt // PIECE):
        raise source.error(
            number, f"{len(pieces)} hash_ids do not fit {prompt} tokens in pieces of {PIECE}", "Give one for each."
        )
    return Call(at / 1000, prompt, output, tuple(pieces))
