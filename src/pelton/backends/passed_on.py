"""PassedOn: an Executable that hands every call to another one, for those that change one call of it.

It does nothing of its own. Invariant: what a subclass does not say is the inner one's.
"""

from pelton.backends.backend import BlockOps, Executable, StepInputs, StepOutputs, WorkingMemory


class PassedOn:
    """See Executable."""

    def __init__(self, inner: Executable) -> None:
        self.inner = inner

    @property
    def block_bytes(self) -> tuple[int, ...]:
        return self.inner.block_bytes

    @property
    def memory(self) -> WorkingMemory:
        return self.inner.memory

    def allocate(self, blocks: tuple[int, ...]) -> None:
        self.inner.allocate(blocks)

    def labels(self) -> tuple[str, ...]:
        return self.inner.labels()

    def run(self, inputs: StepInputs) -> StepOutputs:
        return self.inner.run(inputs)

    def blocks(self) -> BlockOps:
        return self.inner.blocks()

    def counters(self) -> dict[str, int]:
        return self.inner.counters()

    def close(self) -> None:
        self.inner.close()
