"""Histogram: counts of values by bucket, as Prometheus shows them, and the bucket edges that dashboards expect.

Not safe to use from several threads: it belongs to the server's event loop. Invariant: `counts` holds one place more
than there are edges, for what is above all of them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily

# The edges are those of vLLM, so that its dashboards show the same quantiles.
# fmt: off
LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
           960.0, 1920.0, 7680.0)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0, 160.0, 640.0, 2560.0)
BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                  80.0)
# fmt: on
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ANSWERS = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
# Our own: a step takes milliseconds, planning it far less.
STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SCHEDULE_SECONDS = (1e-05, 2e-05, 5e-05, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1, 1.0)


def token_edges(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `most`."""
    edges = []
    scale = 1
    while scale <= most:
        edges += [edge for edge in (scale, 2 * scale, 5 * scale) if edge <= most]
        scale *= 10
    return tuple(edges)


class Histogram:
    """How often values fell at or below each edge."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def family(self, name: str, text: str, labels: dict[str, str]) -> HistogramMetricFamily:
        """The histogram as Prometheus takes it."""
        names = [*(str(float(edge)) for edge in self.edges), "+Inf"]
        buckets = [(edge, float(count)) for edge, count in zip(names, accumulate(self.counts), strict=True)]
        family = HistogramMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), buckets=buckets, sum_value=self.total)
        return family
