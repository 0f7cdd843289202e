"""The kernels of every instruction set, as tests/native has them."""

import ctypes
from pathlib import Path

import pytest
from tests.native.conftest import native_library, probes
from tests.native.library import COMPILE_TIMEOUT
from tests.native.probe import Probe
from tests.numerics.by_kernel import Isa, every_isa

__all__ = ["native_library", "probes"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # As in tests/native: whichever test comes first waits for the compiler.
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(COMPILE_TIMEOUT))


@pytest.fixture(scope="session")
def every(native_library: ctypes.CDLL, probes: list[Probe]) -> list[Isa]:
    """All doors to each instruction set of this CPU."""
    return every_isa(native_library, probes)
