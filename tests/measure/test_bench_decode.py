"""bench/decode.py: what it measures is computed in every run."""

import argparse
import json
import sys
from pathlib import Path

import pytest
from tests.backends.probed import canned
from tests.measure.verify_parts import tiny_talker

from pelton.backends.cpu.probe.figures import MachineProbe
from pelton.engine.llm import LLM

pytest.importorskip("pelton.backends.cpu._native")
ROOT = Path(__file__).resolve().parents[2]


def probe(given: argparse.Namespace, threads: int = 0) -> MachineProbe | None:
    return None if given.no_probe else canned()


@pytest.mark.parametrize("requests", [1, 3])
def test_no_prompt_comes_from_the_cache(
    requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import decode

    monkeypatch.setattr(decode.record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(decode.record, "probe", probe)
    monkeypatch.setattr(decode, "FIRST_ID", 5)
    opened: list[LLM] = []
    monkeypatch.setattr(decode, "LLM", lambda *given, **more: opened.append(LLM(*given, **more)) or opened[0])
    words = f"{tiny_talker(tmp_path)} --runs 3 --prompt 100 --output 4 --threads 1 --requests {requests}"
    monkeypatch.setattr(sys, "argv", ["decode.py", *words.split()])
    seen: list[dict[str, float]] = []
    close = LLM.__exit__

    def leaving(llm: LLM, *error: object) -> None:
        seen.append(dict(llm.get_metrics()))
        close(llm, *error)  # type: ignore[arg-type]

    monkeypatch.setattr(LLM, "__exit__", leaving)
    try:
        decode.main()
    finally:
        for name in ("decode", "record"):
            sys.modules.pop(name, None)
    (metrics,) = seen
    assert metrics
    assert not any(value for name, value in metrics.items() if "prefix_hits" in name or "prefix_inflight" in name)
    (kept,) = (tmp_path / "results" / "decode.jsonl").read_text().splitlines()
    line = json.loads(kept)
    assert line["settings"]["prefix_cache"] is False
    told = capsys.readouterr().out
    if requests == 1:
        assert line["probe"]["decode"]["alternations"] == 9 and "limits          share " in told
    else:
        assert line["probe"]["share_of_read_limit"] > 0 and "limits          share_of_read_limit " in told
