"""Agents: one long list of tools in front of every request, short questions, and turns that grow."""

import json

from pelton.measure.bench.workload import Message, Sample, WorkloadOptions, rows_of

OUTPUT_LEN, TOOLS, TURNS = 48, 12, 3
INSTRUCTION = "You call one of these functions, or answer in words when none fits. Functions:\n"


class Agent:
    """Questions of the Berkeley function-calling set behind a list of twelve tools; up to three turns each.

    The turns of one conversation follow one another, each with the ones before it in front.
    """

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        tools = rows_of(options, "tools/bfcl_v4_multi_turn_func_docs.jsonl")[:TOOLS]
        listed = "\n".join(json.dumps({key: tool[key] for key in ("name", "parameters")}) for tool in tools)
        system: Message = {"role": "system", "content": INSTRUCTION + listed}
        questions = [_question(row) for row in options.pick(rows_of(options, "tools/bfcl_v4_sample.jsonl"))]
        made: list[Sample] = []
        messages: list[Message] = []
        for place, question in enumerate(questions):
            if place % TURNS == 0:
                messages = [system]
            messages.append({"role": "user", "content": question})
            made.append(Sample(options.output_len or OUTPUT_LEN, messages=tuple(messages)))
            messages.append({"role": "assistant", "content": "Done."})
        return made


def _question(row: object) -> str:
    """The first message of the row's first turn."""
    turn = row["question"][0]  # type: ignore[index]
    return str(turn[0]["content"])
