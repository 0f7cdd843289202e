"""From settings to a running engine: what is wired, reported and refused, on a tiny checkpoint in the public layout."""

import subprocess
import sys
from pathlib import Path

import pytest

from pelton.core.clock import FakeClock
from pelton.core.config import resolve
from pelton.core.errors import CapacityError, CheckpointError, SettingError, UnknownNameError
from pelton.core.params import SamplingParams
from pelton.engine.build import build
from pelton.engine.llm import LLM
from pelton.engine.prompts import default_params
from pelton.engine.report import Phases, StartReport
from pelton.kv import KV_CODECS
from pelton.program.states import KVSpec

GREEDY = SamplingParams(temperature=0, max_tokens=20, logprobs=2)


def test_both_backends_give_the_same_greedy_tokens_in_fp32(tiny_model: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pelton.backends.cpu._native")
    prompts = ["hello", "to be, or not to be, that is the question " * 3]
    found = []
    for backend in ("cpu", "reference"):
        with LLM(str(tiny_model), backend=backend, dtype="float32", max_num_batched_tokens=50) as llm:
            assert llm.report.backend == backend and llm.report.dtype == "float32" and not llm.report.notes
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            assert [output.prompt for output in outputs] == prompts
            found.append([(answer.token_ids, answer.text) for output in outputs for answer in output.outputs])
            pieces = list(llm.stream(prompts[0], GREEDY))
            assert "".join(piece.text for piece in pieces) == outputs[0].outputs[0].text
    assert found[0] == found[1]


def test_what_the_checkpoint_says_is_taken(tiny_model: Path) -> None:
    with LLM(str(tiny_model), num_blocks=40) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=7, max_tokens=9)
        assert llm.chat_prompt([{"role": "user", "content": "hi"}])["prompt"] == "<start>user:hi<end><start>assistant:"
        (output,) = llm.generate("hi", use_tqdm=False)
        assert len(output.outputs[0].token_ids) <= 9
        parts = llm._parts
        ends = parts.requests.make("hi", GREEDY).stop_token_ids
        assert ends == {256, 257}, "the end tokens of generation_config"
        assert llm.get_tokenizer() is parts.tokenizer


def test_the_report_tells_sizes_and_what_was_rounded(tiny_model: Path) -> None:
    with LLM(str(tiny_model), num_blocks=40, threads=1) as llm:
        report = llm.report
    assert (report.kv_blocks, report.block_size, report.max_model_len, report.threads) == (41, 32, 1024, 1)
    layer = KV_CODECS.get("plain")().bytes_per_block(KVSpec(2, 16, 16), 32, 2)
    assert report.kv_block_bytes == 2 * layer == 2 * 32 * 2 * (16 + 16) * 2, (
        "layers x tokens x heads x (K and V) x bf16"
    )
    assert report.dtype == "bfloat16" and [note for note in report.notes if "rounded to bf16" in note]
    assert [name for name, _ in report.phases] == ["open", "tokenizer", "program", "compile", "cache"]
    text = "\n".join(report.lines())
    for part in (str(tiny_model), "41 blocks of 32 tokens", "1280 tokens, at most 1024 per request", "1 threads"):
        assert part in text


def test_phases_are_timed_by_the_clock() -> None:
    clock = FakeClock()
    phases = Phases(clock)
    with phases.phase("one"):
        clock.advance(2.0)
    with pytest.raises(ValueError), phases.phase("two"):
        clock.advance(1.0)
        raise ValueError
    assert phases.taken == (("one", 2.0), ("two", 1.0))
    report = StartReport("m", 1 << 20, "bfloat16", 11, 1 << 20, 32, 320, "cpu", "avx2", 2, phases.taken, ("look here",))
    assert report.seconds == 3.0 and report.lines()[-1] == "note     look here"
    assert "3.00 s (one 2.00, two 1.00)" in report.lines()[3] and "11.0 MiB when full: 320 tokens" in report.lines()[1]


def test_a_cache_too_small_is_refused_or_shortens_the_length(tiny_model: Path) -> None:
    with pytest.raises(CapacityError, match="Set max_model_len=320"):
        build(resolve(str(tiny_model), {"num_blocks": 10, "max_model_len": 500}))
    with LLM(str(tiny_model), num_blocks=10) as llm:
        assert llm.report.max_model_len == 320 and "holds no more" in llm.report.notes[-1]
        (output,) = llm.generate("hi", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 318 and output.outputs[0].finish_reason == "length"


def test_wrong_settings_are_refused_by_name(tiny_model: Path) -> None:
    for settings, kind, words in (
        ({"max_model_len": 1025}, SettingError, "beyond the 1024 tokens"),
        ({"scheduling_policy": "fcsf"}, UnknownNameError, "Unknown order 'fcsf'. Did you mean 'fcfs'"),
        ({"backend": "gpu"}, UnknownNameError, "Unknown backend 'gpu'"),
        ({"max_num_seq": 3}, SettingError, "Did you mean 'max_num_seqs'"),
    ):
        with pytest.raises(kind, match=words):
            LLM(str(tiny_model), **settings)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError):
        LLM(str(tiny_model / "config.json"))


def test_another_tokenizer_can_be_named(tiny_model: Path) -> None:
    with LLM(str(tiny_model), tokenizer=str(tiny_model), num_blocks=10) as llm:
        assert llm.get_tokenizer().encode("hi") == [104, 105]


def test_defaults_of_a_model_that_no_request_could_have_are_the_checkpoints_fault() -> None:
    assert default_params({}) == SamplingParams()
    assert default_params({"temperature": None, "top_p": 0.9}) == SamplingParams(top_p=0.9)
    with pytest.raises(CheckpointError, match=r"generation_config.json: temperature=-1"):
        default_params({"temperature": -1})


def test_generating_on_the_cpu_loads_no_torch(tiny_model: Path) -> None:
    pytest.importorskip("pelton.backends.cpu._native")
    code = (
        "import sys; from pelton import LLM; LLM(sys.argv[1], num_blocks=10).generate('hi', use_tqdm=False);"
        "sys.exit(not {'torch', 'transformers'}.isdisjoint(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
