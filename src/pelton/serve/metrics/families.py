"""Families: figures in the form in which Prometheus takes them, with the labels that all of a server's have."""

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pelton.serve.metrics.histogram import Histogram

Split = Mapping[tuple[str, str], float]  # (label, its value) -> figure


class Families:
    """Makes families whose samples have these labels."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels

    def gauge(self, name: str, text: str, value: float | Split) -> Metric:
        """A figure that rises and falls, or several of a kind."""
        return _family(GaugeMetricFamily, name, text, self._labelled(value))

    def counter(self, name: str, text: str, value: float | Split) -> Metric:
        """A figure that only rises, or several of a kind; the samples' names end in _total."""
        return _family(CounterMetricFamily, name, text, self._labelled(value))

    def histogram(self, name: str, text: str, value: Histogram) -> Metric:
        return value.family(name, text, self._labels)

    def _labelled(self, value: float | Split) -> list[tuple[dict[str, str], float]]:
        if isinstance(value, Mapping):
            return [({**self._labels, label: name}, figure) for (label, name), figure in value.items()]
        return [(self._labels, value)]


def info(name: str, text: str, labels: dict[str, str]) -> Metric:
    """A gauge that is 1 and says something by its labels, which are all it has."""
    return _family(GaugeMetricFamily, name, text, [(labels, 1)])


def by(label: str, counts: Mapping[str, float]) -> Split:
    """Counts by the values of one label."""
    return {(label, name): count for name, count in counts.items()}


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    values: list[tuple[dict[str, str], float]],
) -> Metric:
    """A family with one sample for each (labels, value)."""
    family = kind(name, text, labels=list(values[0][0]))
    for labels, value in values:
        family.add_metric(list(labels.values()), value)
    return family
