"""What is read from traces, against figures known from elsewhere, and what is refused."""

import statistics
from pathlib import Path

import pytest

from pelton.core.errors import SettingError
from pelton.measure.simulate.trace import Trace, source_of
from pelton.measure.simulate.traces.azure import Azure
from pelton.measure.simulate.traces.csv_lengths import CsvLengths
from pelton.measure.simulate.traces.mooncake import Mooncake
from pelton.measure.simulate.traces.servegen import WINDOW, ServeGen


def means(trace: Trace) -> tuple[int, int]:
    prompts, outputs = [call.prompt for call in trace.calls], [call.output for call in trace.calls]
    return round(statistics.mean(prompts)), round(statistics.mean(outputs))


@pytest.mark.parametrize(
    ("file", "hits", "pieces", "mean"),
    [("conversation", 59_384, 171_316, (12_566, 347)), ("synthetic", 21_525, 58_321, (12_552, 189))],
)
def test_mooncake_has_the_known_figures(file: str, hits: int, pieces: int, mean: tuple[int, int], data: Path) -> None:
    """Strict prefix matching with an unlimited cache, in file order."""
    trace = Mooncake().read(source_of(data / "traces" / f"mooncake_{file}.jsonl"))
    seen, found = set[int](), 0
    for call in trace.calls:
        found += next((n for n, piece in enumerate(call.pieces) if piece not in seen), len(call.pieces))
        seen.update(call.pieces)
    assert (found, sum(len(call.pieces) for call in trace.calls)) == (hits, pieces)
    assert means(trace) == mean


@pytest.mark.parametrize(("file", "mean"), [("code", (2034, 27)), ("conv", (1263, 206))])
def test_azure_has_the_known_figures(file: str, mean: tuple[int, int], data: Path) -> None:
    trace = Azure().read(source_of(data / "traces" / f"azure_llm_2023_{file}.csv"))
    assert means(trace) == mean
    assert trace.calls[1].at == pytest.approx({"code": 0.052, "conv": 4.314579}[file], abs=1e-5)


def test_mooncake_without_ids_shares_nothing(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(
        '{"timestamp": 2500, "input_length": 7, "output_length": 0}\n{"timestamp": 1000, "input_length": 600,'
        ' "output_length": 5, "hash_ids": [3, 4]}'
    )
    later, first = Mooncake().read(source_of(file)).calls[::-1]
    assert (first.at, first.prompt, first.output, first.pieces) == (0.0, 600, 5, (3, 4))
    assert (later.at, later.prompt, later.output, later.pieces) == (1.5, 7, 0, ())


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("[1]", "no JSON object"),
        ("{", "no JSON"),
        ('{"timestamp": -1, "input_length": 7, "output_length": 0}', "timestamp -1"),
        ('{"timestamp": NaN, "input_length": 7, "output_length": 0}', "timestamp nan"),
        ('{"input_length": 0, "output_length": 0}', "numbers of tokens"),
        ('{"input_length": 7.5, "output_length": 0}', "numbers of tokens"),
        ('{"input_length": 600, "output_length": 0, "hash_ids": [1]}', "1 hash_ids do not fit 600 tokens"),
        ('{"input_length": 6, "output_length": 0, "hash_ids": [true]}', "whole numbers"),
    ],
)
def test_a_bad_line_says_what_is_wrong(line: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(line)
    with pytest.raises(SettingError, match=f"line 1: .*{what}"):
        Mooncake().read(source_of(file))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        source_of(tmp_path / "missing")
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n \n")
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="is empty"):
        source_of(empty)
    with pytest.raises(SettingError, match="no text in UTF-8"):
        source_of(binary)
    header = tmp_path / "header"
    header.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(SettingError, match="no rows"):
        Azure().read(source_of(header))
    header.write_text("a,b\n1,2\n")
    with pytest.raises(SettingError, match="prompt_tokens and output_tokens"):
        CsvLengths().read(source_of(header))


def test_servegen_draws_what_is_described(tmp_path: Path) -> None:
    """A window at two requests a second, by regular gaps: as many as fit, from the histograms."""
    file = tmp_path / "clients"
    file.write_text(
        '{"category": "a", "model": "m", "client": 1, "windows": [[600, 2.0, 0.01, "Gamma", 10000.0, 0.00005]], '
        '"histograms": {"0": {"input_tokens": [[5, 0.25], [9, 0.75]], "output_tokens": [[3, 1.0]]}, "86400": '
        '{"input_tokens": [], "output_tokens": []}}}\n'
        '{"category": "b", "model": "n", "client": 2, "windows": [[0, 0.0, 0.0, "", 0.0, 0.0], '
        '[600, 0.5, 1.0, "Weibull", 1.0, 2.0]], '
        '"histograms": {"0": {"text_tokens": [[5, 1.0]], "image_tokens": [[100, 1.0]], "output_tokens": [[3, 1.0]]}}}'
    )
    regular = ServeGen().read(source_of(Path(f"{file}#m"), count=5000))
    assert len(regular.calls) == pytest.approx(2 * WINDOW, rel=0.01)
    assert regular.calls[-1].at < WINDOW
    gaps = [b.at - a.at for a, b in zip(regular.calls, regular.calls[1:], strict=False)]
    assert statistics.mean(gaps) == pytest.approx(0.5, rel=0.01) and max(gaps) < 0.6
    share = statistics.mean(call.prompt == 9 for call in regular.calls)
    assert share == pytest.approx(0.75, abs=0.05) and {call.output for call in regular.calls} == {3}
    pictures = ServeGen().read(source_of(Path(f"{file}#b"), count=5000))
    assert {call.prompt for call in pictures.calls} == {105} and {call.client for call in pictures.calls} == {"n/2"}
    assert len(pictures.calls) == pytest.approx(0.5 * WINDOW, rel=0.25)
    both = ServeGen().read(source_of(file, count=100))
    assert {call.client for call in both.calls} == {"m/1", "n/2"} and len(both.calls) == 100
    assert both != ServeGen().read(source_of(file, count=100, seed=1))
