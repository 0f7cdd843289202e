"""Several steps one after the other by an executable that does one at a time: what StepInputs.repeat asks for.

The native executable has a loop of its own. Invariant: tokens are those of as many calls of one step each.
"""

import select
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pelton.backends.backend import StepInputs, StepOutputs


def in_turn(run: Callable[[StepInputs], StepOutputs], inputs: StepInputs) -> StepOutputs:
    """Outputs of up to `inputs.repeat` steps by `run`, which is given one at a time."""
    assert not inputs.timing, "ops are timed in single steps"
    step = replace(inputs, repeat=1, sampling=inputs.sampling.copy())
    done: list[StepOutputs] = []
    while True:
        outputs = run(step)
        if outputs.faults.any() and done:
            break
        done.append(outputs)
        if len(done) == inputs.repeat or outputs.faults.any() or _stopped(inputs, outputs) or _readable(inputs.wake):
            break
        step.sampling["place"] += 1
        step = replace(
            step, tokens=outputs.tokens, positions=step.positions + 1, starts=step.starts + 1, block_ops=None
        )
    return done[0] if len(done) == 1 else _joined(done, inputs)


def _stopped(inputs: StepInputs, outputs: StepOutputs) -> bool:
    """Whether a row has drawn a token that ends it."""
    if inputs.stops is None or inputs.stop_offsets is None:
        return False
    ends = inputs.stop_offsets.tolist()
    own = (inputs.stops[start:end] for start, end in zip(ends, ends[1:], strict=False))
    return any(token in stops for token, stops in zip(outputs.tokens.tolist(), own, strict=True))


def _readable(file: int) -> bool:
    if file < 0:
        return False
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


def _joined(done: list[StepOutputs], inputs: StepInputs) -> StepOutputs:
    """Step after step in one record."""
    return StepOutputs(
        tokens=np.concatenate([one.tokens for one in done]),
        logprobs=np.concatenate([one.logprobs for one in done]),
        ranks=np.concatenate([one.ranks for one in done]),
        faults=np.concatenate([one.faults for one in done]),
        top_ids=np.concatenate([one.top_ids for one in done]),
        top_logprobs=np.concatenate([one.top_logprobs for one in done]),
        logits=np.concatenate([one.logits for one in done if one.logits is not None]) if inputs.want_logits else None,
        trace=np.concatenate([one.trace for one in done if one.trace is not None], axis=1) if inputs.trace else None,
        steps=len(done),
        seconds=sum(one.seconds for one in done),
        moving=sum(one.moving for one in done),
    )
