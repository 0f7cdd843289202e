"""Fixtures: the kernels of every instruction set, compiled for ctypes."""

import ctypes
from pathlib import Path

import pytest
from tests.native.library import COMPILE_TIMEOUT, CompileError, build, find_compiler, supported_probes
from tests.native.probe import Probe

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Whichever test comes first waits for the compiler, perhaps on a busy machine.
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(COMPILE_TIMEOUT))


@pytest.fixture(scope="session")
def native_library() -> ctypes.CDLL:
    """The kernels and the wrappers of tests/native/cpp, loaded."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    try:
        return ctypes.CDLL(str(build(compiler)))
    except CompileError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def probes(native_library: ctypes.CDLL) -> list[Probe]:
    """One probe per instruction set that this CPU has, the portable one first."""
    return supported_probes(native_library)
