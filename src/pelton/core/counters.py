"""Counters that any layer may bump, and the engine's figures after a step: plain numbers that `measure` reads."""

import msgspec


class Counters:
    """Named totals since start. Unknown names start at 0."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}

    def add(self, name: str, amount: float = 1) -> None:
        self._totals[name] = self._totals.get(name, 0) + amount

    def get(self, name: str) -> float:
        return self._totals.get(name, 0)

    def snapshot(self) -> dict[str, float]:
        return dict(self._totals)


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """The state after a step, and what the step did. `*_total` count from the engine's start.

    `deferred` of the waiting ones lack neither a row nor memory: they wait for what another request is computing, or
    for room in a step that others filled. `kv_blocks`: of all KV groups, of which requests hold `held_blocks`.
    There would be `spared_blocks` more if nothing were shared. `kv_usage`: the share that they hold, 0 to 1, in the
    group that is fullest (cached blocks nobody uses are free). `kv_waste`: share of the token places in held blocks
    that hold no token, 0 to 1. Prefix figures are in tokens of prompts, each of which counts once: looked up, and found
    (of which `inflight` were still being computed by another request). `swapped`: of the waiting ones, those whose
    blocks wait in `host_slots_used` of the `host_slots`; `swaps_total`: preemptions with that, of which
    `swaps_lost_total` were computed again all the same.
    `disk_*`: blocks in files, their bytes; blocks written, loaded, dropped for lack of room on the way, rejected since
    they were not as written, failed; and tokens of prompts that were found there.

    `step_*` describe the last step alone, or a series of `step_steps` that were one call.
    `backend_seconds_total`: what the backend took of all steps. `sessions` hold `session_blocks` of the held ones.
    `plans_*` made while the step before ran: those that became steps, of which some lost rows, and those taken back.
    """

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_blocks: int = 0
    held_blocks: int = 0
    kv_usage: float = 0.0
    kv_waste: float = 0.0
    cached_blocks: int = 0
    spared_blocks: int = 0
    prefix_queries_total: int = 0
    prefix_hits_total: int = 0
    prefix_inflight_total: int = 0
    prefix_evictions_total: int = 0
    preemptions_total: int = 0
    copied_blocks_total: int = 0
    swapped: int = 0
    host_slots: int = 0
    host_slots_used: int = 0
    swaps_total: int = 0
    swaps_lost_total: int = 0
    saved_blocks_total: int = 0
    loaded_blocks_total: int = 0
    disk_blocks: int = 0
    disk_bytes: int = 0
    disk_stored_total: int = 0
    disk_loaded_total: int = 0
    disk_hit_tokens_total: int = 0
    disk_dropped_total: int = 0
    disk_rejected_total: int = 0
    disk_failed_total: int = 0
    steps_total: int = 0
    computed_tokens_total: int = 0
    step_tokens: int = 0
    step_sequences: int = 0
    step_seconds: float = 0.0
    schedule_seconds: float = 0.0
    step_steps: int = 0
    backend_seconds_total: float = 0.0
    sessions: int = 0
    session_blocks: int = 0
    plans_ahead_total: int = 0
    plans_trimmed_total: int = 0
    plans_taken_back_total: int = 0
