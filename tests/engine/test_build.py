"""From settings to a running engine: what is wired, reported and refused, on a tiny checkpoint in the public layout."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from pytest import LogCaptureFixture
from tests.engine.fakes import make_request

from pelton.core.clock import FakeClock
from pelton.core.config import resolve
from pelton.core.errors import CapacityError, CheckpointError, RequestError, SettingError, UnknownNameError
from pelton.core.params import SamplingParams
from pelton.engine.build import build, build_engine
from pelton.engine.front import build_front
from pelton.engine.llm import LLM
from pelton.engine.report import Phases, StartReport
from pelton.engine.session import Session
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
        assert llm.get_tokenizer() is parts.front.tokenizer


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
    for part in (str(tiny_model), "40 blocks of 32 tokens: 1280 tokens, at most 1024 per request", "1 thread,"):
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
    report = StartReport("m", 1 << 20, "bfloat16", ((11, 1 << 20, None),), 32, 320, "cpu", "avx2", 2, phases.taken)
    assert report.seconds == 3.0
    assert report.lines()[-1] == "start    3.00 s (one 2.00, two 1.00)"


def test_the_report_tells_what_fits() -> None:
    sizes = {"activation_bytes": 3 << 20, "held_bytes": 2 << 20, "max_num_seqs": 7}
    report = StartReport("m", 1 << 20, "bfloat16", ((641, 1 << 20, None),), 32, 4096, "cpu", "avx2", 2, (), **sizes)  # type: ignore[arg-type]
    lines = report.lines()
    assert "memory   weights 2.0 MiB, KV 641.0 MiB when full, activations at most 3.0 MiB" in lines
    assert "kv       640 blocks of 32 tokens: 20480 tokens, at most 4096 per request" in lines
    assert "room     concurrency: 5.0x of 4096 tokens, 20.0x of 1024 tokens; max_num_seqs 7" in lines
    assert report.concurrency(33) == 320
    short = replace(report, max_model_len=320)
    assert "room     concurrency: 64.0x of 320 tokens; max_num_seqs 7" in short.lines()


def test_report_and_limits_can_be_sent_to_another_process(tiny_model: Path) -> None:
    parts = build_engine(resolve(str(tiny_model), {"num_blocks": 10}))
    parts.close()
    for one in (parts.report, parts.limits):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=type(one)) == one
    assert parts.report.activation_bytes > 0 < parts.report.held_bytes and parts.notes == parts.report.notes


def test_a_prefixs_namespace_holds_what_it_is_computed_with(tiny_model: Path) -> None:
    """Positions that are scaled otherwise have a namespace of their own."""

    def key(**settings: object) -> bytes:
        with LLM(str(tiny_model), num_blocks=40, **settings) as llm:  # type: ignore[arg-type]
            engine = llm._parts.session.engine
            engine.add_request(make_request("r", list(range(40)), 1))
            return engine._open["r"].namespace

    linear = {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}
    plain = key()
    assert key() == plain and key(hf_overrides=linear) != plain
    assert key(hf_overrides={"rope_theta": 20000.0}) != plain


def test_front_and_engine_stand_each_without_the_other(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(str(tiny_model), {"num_blocks": 40, "dtype": "float32"})
    with monkeypatch.context() as patch:
        patch.setattr("pelton.engine.build.open_checkpoint", None)
        front = build_front(config)
    assert front.template().render([{"role": "user", "content": "hi"}]).startswith("<start>user:hi<end>")
    with monkeypatch.context() as patch:
        patch.setattr("pelton.engine.front.build_tokenizer", None)
        inner = build_engine(config)
    assert front.fit(inner.limits) == () and inner.limits.max_len == 1024 and inner.limits.end_ids == {256, 257}
    session = Session(inner.engine, front.tokenizer)
    (answer,) = session.start([front.maker(inner.limits, inner.engine.clock).make("hello", GREEDY)])
    while session.unfinished([answer]):
        pass
    inner.close()
    inner.close()
    with LLM(str(tiny_model), num_blocks=40, dtype="float32") as llm:
        assert llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs == answer.output().outputs


def test_where_defaults_come_from_is_told(tiny_model: Path) -> None:
    with LLM(str(tiny_model), num_blocks=40, override_generation_config='{"top_k": 3}') as llm:
        params, origins = llm.get_default_sampling_params(), llm.explain_sampling().origins
        assert (params.temperature, params.top_k, params.max_tokens, params.top_p) == (0.5, 3, 9, 1.0)
        assert {name: origins[name] for name in ("temperature", "top_k", "max_tokens", "top_p")} == {
            "temperature": "generation_config",
            "top_k": "flag",
            "max_tokens": "generation_config",
            "top_p": "default",
        }
        explained = llm.explain_sampling({"temperature": 0.1})
        assert (explained.params.temperature, explained.params.top_k) == (0.1, 3)
        assert (explained.origins["temperature"], explained.origins["top_k"]) == ("request", "flag")
        explained = llm.explain_sampling(GREEDY)
        assert explained.params == GREEDY and explained.origins["temperature"] == "request"
        assert explained.origins["top_k"] == "default", "params stand for themselves"
        with pytest.raises(RequestError, match="top_p"):
            llm.explain_sampling({"top_p": 7})
    with LLM(str(tiny_model), num_blocks=40, generation_config="none") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
    for text, words in (("{", "is no JSON"), ('{"top_p": 7}', "top_p=7"), ('{"top_q": 1}', "Did you mean top_")):
        with pytest.raises(SettingError, match=f"override_generation_config.*{words}"):
            build_front(resolve(str(tiny_model), {"override_generation_config": text}))


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
        (
            {"scheduling_policy": "fcsf"},
            UnknownNameError,
            "scheduling_policy='fcsf' cannot work. It must be one of fair, fcfs, ",
        ),
        ({"backend": "gpu"}, UnknownNameError, "backend='gpu' cannot work. It must be one of cpu, reference."),
        ({"kv_codec": "int3"}, UnknownNameError, "kv_codec='int3' cannot work."),
        ({"tensor_parallel_size": 2}, SettingError, "tensor_parallel_size is not supported here: this version runs on"),
        ({"max_num_seq": 3}, SettingError, "Did you mean 'max_num_seqs'"),
    ):
        with pytest.raises(kind, match=words):
            LLM(str(tiny_model), **settings)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError):
        LLM(str(tiny_model / "config.json"))


def test_nothing_to_do_shows_no_bar(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LLM(str(tiny_model), num_blocks=10) as llm:
        capsys.readouterr()
        assert llm.generate([], SamplingParams()) == []
        assert "Processed prompts" not in capsys.readouterr().err
        llm.generate("hi", SamplingParams(max_tokens=1))
        assert "Processed prompts" in capsys.readouterr().err


def test_a_template_that_does_not_compile_is_refused_at_the_start(tiny_model: Path) -> None:
    with pytest.raises(SettingError, match="chat_template cannot work: The chat template does not compile"):
        LLM(str(tiny_model), num_blocks=10, chat_template="{{")
    with LLM(str(tiny_model), num_blocks=10, chat_template="{{ messages | length }}") as llm:
        assert llm.chat_prompt([{"role": "user", "content": "hi"}])["prompt"] == "1"


def test_rows_that_no_memory_could_hold_are_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pelton.engine.build.RowStates", no_memory)
    with pytest.raises(CapacityError, match="max_num_seqs=9 requests of max_model_len=320 tokens"):
        LLM(str(tiny_model), num_blocks=10, max_num_seqs=9)


def test_tokens_beyond_the_model_are_told_and_refused(tiny_model: Path, tmp_path: Path) -> None:
    """The model has 272 tokens, its files speak of more."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    described["added_tokens"] += [
        {**described["added_tokens"][0], "id": 260 + n, "content": f"<more{n}>"} for n in range(20)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    said = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**said, "eos_token_id": [256, 300]}))
    with LLM(str(folder), num_blocks=10, dtype="float32") as llm:
        for words in ("The tokenizer has 280 tokens, the model 272", "Token 300 cannot end an answer"):
            assert sum(words in note for note in llm.report.notes) == 1, words
        assert llm._parts.requests.make("hi", GREEDY).stop_token_ids == {256}
        with pytest.raises(RequestError, match=r"prompts\[1\]: The text becomes token 272 \('<more12>'\)"):
            llm.generate(["hi<more11>", "hi<more12>"], GREEDY, use_tqdm=False)
        assert llm.generate("hi<more11>", GREEDY, use_tqdm=False)[0].prompt_token_ids == [104, 105, 271]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, "bos_token": "<more19>", "add_bos_token": True})
    )
    with pytest.raises(CheckpointError, match="starts with token 279"):
        LLM(str(folder), num_blocks=10)


def test_another_tokenizer_can_be_named(tiny_model: Path) -> None:
    with LLM(str(tiny_model), tokenizer=str(tiny_model), num_blocks=10) as llm:
        assert llm.get_tokenizer().encode("hi") == [104, 105]


def test_notes_are_in_the_report_and_in_the_log(tiny_model: Path, tmp_path: Path, caplog: LogCaptureFixture) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    for name, extra in (("config.json", {"zeta_gate": 1}), ("generation_config.json", {"no_repeat_ngram_size": 3})):
        said = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**said, **extra}))
    with LLM(str(folder), num_blocks=10) as llm:
        notes = llm.report.notes
    for words in ("'zeta_gate'", "no_repeat_ngram_size=3", "F32 matrices rounded to bf16", "holds no more"):
        assert sum(words in note for note in notes) == 1, words
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("pelton", "WARNING", note) for note in notes
    ]


def test_the_report_tells_the_weights_as_their_scheme_does(tiny_model: Path) -> None:
    for dtype, words in (("bfloat16", "F32 matrices rounded to bf16"), ("float32", "as stored, multiplied in fp32")):
        with LLM(str(tiny_model), num_blocks=40, dtype=dtype) as llm:
            assert llm.report.lines()[1].startswith("weights  32.00 bits per weight (F32 ")
            assert words in llm.report.lines()[1]
            assert any("rounded" in note for note in llm.report.notes) == (dtype == "bfloat16")


def test_a_forked_process_is_told(tiny_model: Path) -> None:
    """The child has the engine's memory, but not its threads: a step there would wait for ever."""
    pytest.importorskip("pelton.backends.cpu._native")
    code = (
        "import os, sys\nfrom pelton import LLM\nfrom pelton.core.errors import BackendError\n"
        "llm = LLM(sys.argv[1], num_blocks=40, threads=2)\nstream = llm.stream('hi')\nnext(stream)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    told = 0\n"
        "    for call in (lambda: llm.generate('hi', use_tqdm=False), lambda: next(stream), lambda: llm.stream('hi'),\n"
        "                 lambda: llm.chat([{'role': 'user', 'content': 'hi'}])):\n"
        "        try:\n            call()\n"
        "        except BackendError as error:\n            told += 'was forked from process' in str(error)\n"
        "    llm.close()\n    os._exit(told)\n"
        "told = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "answers = llm.generate('hi', use_tqdm=False)\nsys.exit(told != 4 or not answers[0].finished)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr


def test_generating_on_the_cpu_loads_no_torch(tiny_model: Path) -> None:
    pytest.importorskip("pelton.backends.cpu._native")
    code = (
        "import sys; from pelton import LLM; LLM(sys.argv[1], num_blocks=10).generate('hi', use_tqdm=False);"
        "sys.exit(not {'torch', 'transformers'}.isdisjoint(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
