"""What the techniques of one engine need of each other: those a start has chosen, and the matrix of all that exist.

It knows registries, no technique. Invariant: a technique is named as "<kind> <name>", so that its setting can be found.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from pelton.backends import BACKENDS
from pelton.constraints import GRAMMARS
from pelton.core.compat import matrix
from pelton.core.config import EngineConfig, ScheduleSection
from pelton.core.errors import SettingError, UnknownNameError
from pelton.core.needs import Needs
from pelton.core.registry import Registry, parse_choice
from pelton.engine.load.weights import owner_weights
from pelton.kv import KV_CODECS, KV_POLICIES
from pelton.quant import QUANTIZATIONS, SCHEMES, method_for
from pelton.sampling import STEPS
from pelton.schedule import ORDERS
from pelton.speculate import SPECULATORS

# Settings that name a technique -> the names that there are.
CHOICES: Mapping[str, Callable[[], list[str]]] = {
    "backend": BACKENDS.names,
    "kv_codec": KV_CODECS.names,
    "quantization": QUANTIZATIONS.names,
    "scheduling_policy": ORDERS.names,
}


class Declares(Protocol):
    """A technique that says what it needs and breaks."""

    @property
    def needs(self) -> Needs: ...


D = TypeVar("D", bound=Declares)


def check_names(config: EngineConfig) -> None:
    """UnknownNameError naming the setting, if it asks for a technique that no registry has, and SettingError for
    options that it has not. Imports none of them but for options.
    """
    for setting, value in (
        ("backend", config.backend.backend),
        ("kv_codec", config.cache.kv_codec),
        ("scheduling_policy", config.schedule.scheduling_policy),
    ):
        known = CHOICES[setting]()
        if value not in known:
            what = "one of " if len(known) > 1 else ""
            raise UnknownNameError(f"{setting}={value!r} cannot work.", f"It must be {what}{', '.join(known)}.")
    if config.model.quantization is not None:
        method_for("quantization", config.model.quantization)
    _check_weights(config.schedule)
    policy = config.schedule.scheduling_policy
    if ORDERS.get(policy).heeds_cache and not config.cache.enable_prefix_caching:
        raise SettingError(
            f"scheduling_policy={policy!r} and enable_prefix_caching=False cannot work together: it orders requests by "
            "what is cached, and nothing is.",
            "Leave one of them out.",
        )


def _check_weights(schedule: ScheduleSection) -> None:
    """SettingError for weights that are none, and where no order looks at them."""
    if schedule.fairness_weights is None:
        return
    owner_weights(schedule.fairness_weights)
    if not ORDERS.get(schedule.scheduling_policy).heeds_owner:
        heeding = [name for name in ORDERS if ORDERS.get(name).heeds_owner]
        raise SettingError(
            "fairness_weights would have no effect.",
            f"Leave it out, or set scheduling_policy to {' or '.join(heeding)}.",
        )


def chosen_needs(scheme: str, codec: str, quantization: str | None = None) -> dict[str, Needs]:
    """Needs of all that an engine with this weight scheme, KV codec and quantization at load runs: these and every
    logits step.

    Orders and backends neither rely on a Fact nor break one, so they declare nothing.
    """
    chosen = {**declared(SCHEMES, scheme), **declared(KV_CODECS, codec), **declared(STEPS)}
    if quantization is not None:
        chosen |= declared(QUANTIZATIONS, parse_choice("quantization", quantization).name)
    return chosen


def compatibility() -> dict[tuple[str, str], list[str]]:
    """Each pair of registered techniques -> what keeps them from running together; empty where nothing does."""
    return matrix(
        {
            **declared(SCHEMES),
            **declared(QUANTIZATIONS),
            **declared(KV_CODECS),
            **declared(KV_POLICIES),
            **declared(STEPS),
            **declared(SPECULATORS),
            **declared(GRAMMARS),
        }
    )


def declared(registry: Registry[type[D]], *names: str) -> dict[str, Needs]:
    """ "<kind> <name>" -> Needs, of these entries or of all."""
    return {f"{registry.kind} {name}": registry.get(name)().needs for name in names or registry.names()}
