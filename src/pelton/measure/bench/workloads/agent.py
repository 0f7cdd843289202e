"""Agents: one long list of tools in front of every conversation, short questions, and turns that grow."""

import json
from collections.abc import Mapping

from pelton.core.errors import SettingError
from pelton.measure.bench.workload import Message, Sample, WorkloadOptions, rows_of

OUTPUT_LEN, TOOLS, TURNS = 48, 12, 3
INSTRUCTION = "You call one of these functions, or answer in words when none fits. Functions:\n"


class Agent:
    """Questions of the Berkeley function-calling set behind a list of twelve tools, in conversations of three turns.

    A turn is asked when the one before it is answered, with that answer and all before it in front.
    """

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        tools = rows_of(options, "tools/bfcl_v4_multi_turn_func_docs.jsonl", "name", "parameters")[:TOOLS]
        listed = "\n".join(json.dumps({key: tool[key] for key in ("name", "parameters")}) for tool in tools)
        system: Message = {"role": "system", "content": INSTRUCTION + listed}
        asked_of = rows_of(options, "tools/bfcl_v4_sample.jsonl", "question")
        questions = [_question(row) for row in options.pick(asked_of)]
        made: list[Sample] = []
        for place, question in enumerate(questions):
            asked: Message = {"role": "user", "content": question}
            opens = place % TURNS == 0
            made.append(
                Sample(
                    options.output_len or OUTPUT_LEN,
                    messages=(system, asked) if opens else (asked,),
                    follows=None if opens else place - 1,
                )
            )
        return made


def _question(row: Mapping[str, object]) -> str:
    """The first message of the row's first turn."""
    match row["question"]:
        case [[{"content": str(text)}, *_], *_]:
            return text
    raise SettingError(
        "A row of tools/bfcl_v4_sample.jsonl has a question of another form.",
        'Write it like "question": [[{"role": "user", "content": "..."}]].',
    )
