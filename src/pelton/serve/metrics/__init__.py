"""What /metrics tells: `Metrics` watches the engine, `Histogram` counts. Nothing here answers a request."""

from pelton.serve.metrics.observer import Metrics

__all__ = ["Metrics"]
