"""Every trace reader: reads its own kind of file in order, says by the first line what is its, and names a bad line."""

from pathlib import Path

import pytest
from registry_entries import entries

from pelton.core.errors import SettingError
from pelton.measure.simulate import TRACES
from pelton.measure.simulate.trace import Trace, source_of

# kind -> files of the test data, and how many calls each has (None: as many as are asked for)
FILES = {
    "mooncake": {"mooncake_conversation.jsonl": 6848, "mooncake_synthetic.jsonl": 2319},
    "azure": {"azure_llm_2023_code.csv": 5291, "azure_llm_2023_conv.csv": 11619},
    "servegen": {"servegen_clients.jsonl": None, "servegen_clients.jsonl#reason": None},
    "csv_lengths": {"sharegpt_first_turn_lengths.csv": 4000, "arxiv_summarization_lengths.csv": 18838},
}
CASES = [(kind, file, count) for kind in entries("trace") for file, count in FILES[kind].items()]
BAD = {
    "mooncake": (
        '{"timestamp": 0, "input_length": 5, "output_length": 1}',
        '{"input_length": "x", "output_length": 1}',
    ),
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10", "yesterday,5,5"),
    "servegen": (
        '{"client": 1, "windows": [[0, 1.0, 1.0, "Gamma", 1.0, 1.0]], '
        '"histograms": {"0": {"input_tokens": [[5, 1.0]], "output_tokens": [[5, 1.0]]}}}',
        '{"client": 2, "windows": [[0, 1.0, 1.0, "Levy", 1.0, 1.0]], "histograms": {}}',
    ),
    "csv_lengths": ("prompt_tokens,output_tokens\n5,5", "5"),
}


def read(kind: str, path: Path, count: int | None = None, seed: int = 0) -> Trace:
    return TRACES.get(kind)().read(source_of(path, count=count, seed=seed))


@pytest.mark.parametrize(("kind", "file", "count"), CASES)
def test_reads_a_real_file(kind: str, file: str, count: int | None, data: Path) -> None:
    trace = read(kind, data / "traces" / file, 300)
    assert len(trace.calls) == (300 if count is None else count)
    moments = [call.at for call in trace.calls]
    assert moments[0] == 0.0 and moments == sorted(moments)
    assert (moments[-1] > 0) == trace.timed
    assert all(call.prompt >= 1 and call.output >= 0 for call in trace.calls)
    assert all(not call.pieces or len(call.pieces) == -(-call.prompt // trace.piece) for call in trace.calls)
    assert trace == read(kind, data / "traces" / file, 300)


@pytest.mark.parametrize("kind", entries("trace"))
def test_a_file_is_of_one_kind(kind: str, data: Path) -> None:
    first = source_of(data / "traces" / next(iter(FILES[kind]))).lines[0][1]
    assert [name for name in entries("trace") if TRACES.get(name)().claims(first)] == [kind]
    assert not TRACES.get(kind)().claims("once upon a time")


@pytest.mark.parametrize("kind", entries("trace"))
def test_a_bad_line_is_named(kind: str, tmp_path: Path) -> None:
    good, bad = BAD[kind]
    file = tmp_path / "trace"
    file.write_text(f"{good}\n")
    assert len(read(kind, file, 1).calls) == 1
    file.write_text(f"{good}\n\n{bad}\n")
    number = good.count("\n") + 3
    with pytest.raises(SettingError, match=f"line {number}: "):
        read(kind, file)


@pytest.mark.parametrize("kind", entries("trace"))
def test_only_what_has_parts_takes_one(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(BAD[kind][0] + "\n")
    with pytest.raises(SettingError, match="nobody"):
        read(kind, Path(f"{file}#nobody"))
