"""The settings of `pelton serve`: every flag reaches its setting, who wins, and what errors say."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from click.testing import Result
from tests.cli.running import invoke

from pelton.cli.options import ENGINE_SECTIONS
from pelton.cli.settings.foreign_flags import ALIASES, ALWAYS_ON, UNSUPPORTED, foreign
from pelton.cli.settings.serve_flags import SETTINGS, Kind
from pelton.core.config import EngineConfig, FetchSection
from pelton.core.errors import BackendError, CapacityError, SettingError
from pelton.serve.settings import ServeSettings


class Caught:
    """What serving was started with."""

    config: EngineConfig
    door: ServeSettings
    fetch: FetchSection
    calls = 0

    def pull(self, model: str, fetch: FetchSection, **_: object) -> Path:
        self.fetch = fetch
        return Path(f"/pulled/{model}")

    def run(self, config: EngineConfig, door: ServeSettings, *rest: object) -> None:
        self.config, self.door, self.calls = config, door, self.calls + 1

    def setting(self, name: str) -> object:
        """The value of a setting by its name, wherever it went."""
        setting = SETTINGS[name]
        if setting.door:
            return getattr(self.door, setting.field)
        if name == "seed":
            return self.config.seed
        parts: tuple[Any, ...] = (
            self.config.model,
            self.fetch,
            self.config.cache,
            self.config.schedule,
            self.config.backend,
        )
        (value,) = [getattr(part, name) for part in parts if hasattr(part, name)]
        return value


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[Caught]:
    """Nothing is served, pulled or listened on."""
    seen = Caught()

    class Listening:
        def close(self) -> None: ...

    monkeypatch.setattr("pelton.cli.commands.serve.run", seen.run)
    monkeypatch.setattr("pelton.cli.commands.serve.listen", lambda door: Listening())
    monkeypatch.setattr("pelton.cli.fetching.pull", seen.pull)
    yield seen


def good(*words: str) -> Result:
    result = invoke("serve", *words)
    assert result.exit_code == 0, result.stderr
    return result


def bad(*words: str) -> str:
    """What is said of words that cannot work, on one line."""
    result = invoke("serve", *words)
    assert result.exit_code == 2, result.stderr
    return result.stderr.rpartition("Error: ")[2].strip()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    for name in ("key", "cert"):
        (tmp_path / name).touch()
    return {"template": str(template), "key": str(tmp_path / "key"), "cert": str(tmp_path / "cert")}


# setting -> (text of the flag, what it becomes)
VALUES: dict[str, tuple[str, object]] = {
    "tokenizer": ("other", "other"),
    "dtype": ("float32", "float32"),
    "max_model_len": ("77", 77),
    "revision": ("v2", "v2"),
    "hf_token": ("hf_x", "hf_x"),
    "hf_endpoint": ("https://mirror.example", "https://mirror.example"),
    "download_dir": ("/models", "/models"),
    "generation_config": ("none", "none"),
    "override_generation_config": ('{"temperature": 0.5}', '{"temperature": 0.5}'),
    "hf_overrides": ('{"rope_theta": 5e4}', '{"rope_theta": 5e4}'),
    "quantization": ("int4:group=64", "int4:group=64"),
    "linear_form": ("values", "values"),
    "activations": ("int8", "int8"),
    "kv_cache_memory_bytes": ("1.5G", 3 * 2**29),
    "num_blocks": ("9", 9),
    "block_size": ("32", 32),
    "kv_codec": ("plain", "plain"),
    "prefix_cache_tokens": ("640", 640),
    "kv_disk_bytes": ("3G", 3 * 2**30),
    "session_seconds": ("60", 60),
    "max_num_seqs": ("5", 5),
    "max_num_batched_tokens": ("64", 64),
    "long_prefill_token_threshold": ("16", 16),
    "max_num_queued_reqs": ("3", 3),
    "itl_target_ms": ("80", 80),
    "scheduling_policy": ("priority", "priority"),
    "max_steps_per_call": ("3", 3),
    "planning_depth": ("2", 2),
    "backend": ("reference", "reference"),
    "packed_cache_bytes": ("2G", 2**31),
    "threads": ("2", 2),
    "seed": ("11", 11),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("0", 0),
    "uds": ("/tmp/x", "/tmp/x"),
    "api_key": ("k", ("k",)),
    "root_path": ("/llm", "/llm"),
    "context_cost": ("0.01", 0.01),
    "allowed_origins": ("*", ("*",)),
    "served_model_name": ("a", ("a",)),
    "sse_keep_alive_interval": ("2.5", 2.5),
    "max_body_bytes": ("1M", 2**20),
    "max_head_bytes": ("8K", 2**13),
    "client_timeout": ("7.5", 7.5),
    "log_level": ("error", "error"),
    "shutdown_timeout": ("1", 1.0),
    "request_timeout": ("90", 90.0),
    "watchdog_timeout": ("9.5", 9.5),
}
VALUES |= {"swap_space_bytes": ("1G", 2**30), "preemption_mode": ("swap", "swap")}
VALUES["slot_save_path"] = (gettempdir(), gettempdir())
SWITCHES = [name for name, setting in SETTINGS.items() if setting.kind is Kind.SWITCH]
TOGETHER = {
    "fairness_weights",
    "kv_disk_folder",
    "chat_template",
    "ssl_keyfile",
    "ssl_certfile",
    "model",
}  # tested below


def test_every_setting_is_in_the_table() -> None:
    """And every field of a section and of the door has a setting."""
    assert set(SETTINGS) == {*VALUES, *SWITCHES, *TOGETHER}
    engine = {field.name for section in ENGINE_SECTIONS for field in fields(section)}
    door = {field.name for field in fields(ServeSettings)}
    assert {setting.field for setting in SETTINGS.values()} == engine | door | {"seed"}


@pytest.mark.parametrize("name", VALUES)
def test_a_flag_reaches_its_setting(caught: Caught, name: str) -> None:
    text, value = VALUES[name]
    flag = SETTINGS[name].flag
    for words in ([flag, text], [f"{flag}={text}"], [f"{flag.replace('-', '_').replace('__', '--', 1)}={text}"]):
        good(*words)
        assert caught.setting(name) == value
    assert caught.calls == 3


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_reaches_its_setting(caught: Caught, name: str) -> None:
    flag = SETTINGS[name].flag
    good(flag)
    assert caught.setting(name) is True
    good(f"--no-{flag.removeprefix('--')}")
    assert caught.setting(name) is False


@pytest.mark.parametrize("name", [*VALUES, *SWITCHES])
def test_a_variable_and_a_file_reach_their_setting(
    caught: Caught, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text, value = VALUES.get(name, ("true", True))
    with monkeypatch.context() as patch:
        patch.setenv(f"PELTON_{name.upper()}", text)
        good()
    assert caught.setting(name) == value
    file = tmp_path / "serve.yaml"
    for key in (name, SETTINGS[name].flag.removeprefix("--")):
        file.write_text(f"{key}: {json.dumps(value if isinstance(value, (bool, int, float)) else text)}\n")
        good("--config", str(file))
        assert caught.setting(name) == value


def test_files_of_settings(caught: Caught, files: dict[str, str]) -> None:
    good("--chat-template", files["template"], "--ssl-keyfile", files["key"], "--ssl-certfile", files["cert"])
    assert caught.config.model.chat_template == "{{ messages[0].content }}"
    assert (caught.door.ssl_keyfile, caught.door.ssl_certfile) == (files["key"], files["cert"])


def test_weights_need_their_order(caught: Caught) -> None:
    good("--scheduling-policy", "fair", "--fairness-weights", '{"ann": 2}')
    assert caught.config.schedule.fairness_weights == '{"ann": 2}'
    assert "would have no effect" in bad("--fairness-weights", '{"ann": 2}')
    for weights in ('{"ann": 0}', '{"ann": 1, "ann": 2}', '{"ann"', '["ann"]'):
        said = bad("--scheduling-policy", "fair", "--fairness-weights", weights)
        assert said.startswith("--fairness-weights ") and "ann" not in said, "it may be a key"


def test_a_folder_of_files_needs_their_size(caught: Caught) -> None:
    good("--kv-disk-folder", "/kv", "--kv-disk-bytes", "3G")
    assert caught.config.cache.kv_disk_folder == "/kv"
    assert bad("--kv-disk-folder", "/kv").startswith("--kv-disk-folder /kv would have no effect: --kv-disk-bytes is 0.")


def test_slots_are_saved_where_some_are_held_and_the_folder_can_be_written_to(caught: Caught, tmp_path: Path) -> None:
    flag = ("--slot-save-path", str(tmp_path))
    good(*flag)
    assert caught.door.slot_save_path == str(tmp_path) and not list(tmp_path.iterdir())
    for words, why in (
        (("--no-enable-prefix-caching",), "--no-enable-prefix-caching is off"),
        (("--session-seconds", "0"), "--session-seconds is 0"),
    ):
        assert bad(*flag, *words).startswith(f"--slot-save-path {tmp_path} would have no effect: {why}")
    assert bad("--slot-save-path", "/proc").startswith("--slot-save-path /proc cannot work: ")


def test_an_order_by_what_is_cached_needs_a_cache(caught: Caught) -> None:
    good("--scheduling-policy", "lpm")
    said = bad("--scheduling-policy", "lpm", "--no-enable-prefix-caching")
    assert said.startswith("--scheduling-policy lpm and --no-enable-prefix-caching cannot work together")


def test_the_model(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["some"], ["--model", "some"], ["-m", "some"], ["--model-path=some"], ["some", "--model", "some"]):
        good(*words)
        assert caught.config.model.model == "/pulled/some" and caught.door.served_model_names == ("some",)
    good()
    assert caught.config.model.model == "/pulled/smollm2"
    monkeypatch.setenv("PELTON_MODEL", "other")
    good()
    assert caught.config.model.model == "/pulled/other"
    good("some")
    assert caught.config.model.model == "/pulled/some"
    assert "Two models are given" in bad("some", "--model", "third")


def test_several_values(caught: Caught, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good("--served-model-name", "a", "--served-model-name", "b", "--api-key=x", "--api-key", "y")
    assert caught.door.served_model_names == ("a", "b") and caught.door.api_keys == ("x", "y")
    good("some", "--served-model-name", "a", "b", "--port", "0", "--api-key", "x", "y")
    assert caught.door.served_model_names == ("a", "b") and caught.door.api_keys == ("x", "y")
    good("--served-model-name", "a", "some")
    assert caught.setting("served_model_name") == ("a",) and caught.config.model.model == "/pulled/some"
    monkeypatch.setenv("PELTON_SERVED_MODEL_NAME", "a, b")
    monkeypatch.setenv("PELTON_ALLOWED_ORIGINS", '["http://x", "http://y"]')
    good()
    assert caught.door.served_model_names == ("a", "b") and caught.door.allowed_origins == ("http://x", "http://y")
    file = tmp_path / "serve.yaml"
    file.write_text("api-key: [x, y]\n")
    good("--config", str(file))
    assert caught.door.api_keys == ("x", "y")


def test_max_model_len_may_be_auto(caught: Caught) -> None:
    for text in ("auto", "-1"):
        good("--max-model-len", text)
        assert caught.config.model.max_model_len is None


def test_numbers_and_words_as_they_are_written_elsewhere(caught: Caught) -> None:
    good("--max-model-len", "2K", "--log-level", "WARNING")
    assert caught.config.model.max_model_len == 2048 and caught.door.log_level == "warning"
    good("--max-model-len", "2k")
    assert caught.config.model.max_model_len == 2000
    assert bad("--max-model-len", "k").startswith("--max-model-len k cannot work.")
    assert bad("--log-level", "LOUD").startswith("--log-level LOUD cannot work. It must be one of critical, ")


def test_who_wins(caught: Caught, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\nmax_num_seqs: 1\nthreads: 1\nstrict: true\nenable-prefix-caching: true\n")
    monkeypatch.setenv("PELTON_MAX_NUM_SEQS", "2")
    monkeypatch.setenv("PELTON_THREADS", "2")
    monkeypatch.setenv("PELTON_STRICT", "0")
    told = good("--config", str(file), "--threads", "3", "--disable-radix-cache", "--verbose").stderr
    assert [caught.setting(name) for name in ("port", "max_num_seqs", "threads")] == [1, 2, 3]
    assert caught.door.strict is False and caught.config.cache.enable_prefix_caching is False
    assert f"setting  port: {file}: port: 1" in told
    assert "setting  max_num_seqs: PELTON_MAX_NUM_SEQS=2" in told and "setting  threads: --threads 3" in told
    monkeypatch.setenv("PELTON_CONFIG", str(file))
    good()
    assert caught.setting("port") == 1


@pytest.mark.parametrize("flag", ALIASES)
def test_other_engines_spellings(caught: Caught, flag: str, files: dict[str, str]) -> None:
    alias = ALIASES[flag]
    assert alias.setting in SETTINGS and flag not in UNSUPPORTED
    if alias.value is not None:
        good(flag)
        assert caught.setting(alias.setting) is alias.value
        return
    if alias.setting in TOGETHER:
        pair = ["--ssl-keyfile", files["key"]] if flag == "--ssl-cert-file" else ["--ssl-certfile", files["cert"]]
        text = files["template"] if alias.setting == "chat_template" else files["key"]
        good(flag, text, *(pair if "ssl" in flag else []))
        return
    text, value = VALUES[alias.setting]
    good(flag, text)
    assert caught.setting(alias.setting) == value


def test_async_scheduling_is_a_planning_depth(caught: Caught, tmp_path: Path) -> None:
    """On and off, on the command line and in a file."""
    for words, depth in ((["--async-scheduling"], 2), (["--no-async-scheduling"], 1), ([], 1)):
        good(*words)
        assert caught.config.schedule.planning_depth == depth
    file = tmp_path / "serve.yaml"
    for line, depth in (
        ("async-scheduling: true", 2),
        ("async-scheduling: false", 1),
        ("no-async-scheduling: false", 2),
    ):
        file.write_text(line)
        good("--config", str(file))
        assert caught.config.schedule.planning_depth == depth
    assert bad("--planning-depth", "3").startswith("--planning-depth 3 cannot work. It must be from 1 to 2")
    assert "There is no flag --async-scheduling here. What is there for it: --planning-depth." in (
        invoke("complete", "--async-scheduling").stderr
    )


def test_two_spellings_of_one_setting() -> None:
    assert bad("--max-num-seqs", "1", "--parallel", "2") == (
        "--max-num-seqs and --parallel are the same setting. Give one of them."
    )


@pytest.mark.parametrize("flag", ALWAYS_ON)
def test_switches_of_what_is_always_on(caught: Caught, flag: str, tmp_path: Path) -> None:
    assert f"note: {flag} changes nothing" in good(flag).stderr
    off = f"--no-{flag.removeprefix('--')}"
    assert bad(off).startswith(f"{off} cannot work: ")
    file = tmp_path / "serve.yaml"
    file.write_text(f"{flag.removeprefix('--')}: true\n")
    assert f"{flag.removeprefix('--')} changes nothing" in good("--config", str(file)).stderr
    for line in (f"{flag.removeprefix('--')}: false\n", f"{off.removeprefix('--')}: true\n"):
        file.write_text(line)
        assert "cannot work" in bad("--config", str(file))


# ---------------------------------------------------------------------------------------------------
# what cannot work


@pytest.mark.parametrize("flag", UNSUPPORTED)
def test_flags_of_other_engines_that_are_not_here(flag: str) -> None:
    """The reason is told, and no other flag but one that is for the same purpose."""
    said = bad("some", flag, "1")
    assert said == foreign(flag) and said.startswith(f"{flag} is not supported here: ")
    flags = {setting.flag for setting in SETTINGS.values()}
    assert flag not in flags
    hint = re.search(r"What is there for it: (--[a-z-]+)\.$", said)
    assert hint[1] in flags if hint else said.endswith(". Leave it out.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "x"], "--port x cannot work. It must be a whole number."),
        (["--port=70000"], "--port 70000 cannot work. It must be from 0 to 65535 (0: any free one)."),
        (["--max-num-seqs", "0"], "--max-num-seqs 0 cannot work. It must be from 1 to 65536."),
        (["-np", "0"], "-np 0 cannot work. It must be from 1 to 65536."),
        (["--kv-cache-memory-bytes", "much"], "--kv-cache-memory-bytes much cannot work. 'much' is no number of bytes"),
        (["--dtype", "int4"], "--dtype int4 cannot work. It must be one of auto, bfloat16, float32."),
        (
            ["--scheduling-policy", "lru"],
            "--scheduling-policy lru cannot work. It must be one of fair, fcfs, lpm, priority, sjf.",
        ),
        (["--backend", "cuda"], "--backend cuda cannot work. It must be one of cpu, reference."),
        (["--kv-codec", "fp8"], "--kv-codec fp8 cannot work. It must be plain."),
        (
            ["--kv-cache-memory-bytes", "64M", "--num-gpu-blocks-override", "10"],
            "--kv-cache-memory-bytes 64M and --num-gpu-blocks-override 10 both say how large the KV cache is.",
        ),
        (
            ["--kv-disk-bytes", "2G", "--disable-radix-cache"],
            "--kv-disk-bytes 2G and --disable-radix-cache cannot work together: what goes to the disk are prefixes",
        ),
        (
            ["--preemption-mode", "swap", "--swap-space-bytes", "0"],
            "--preemption-mode swap and --swap-space-bytes 0 cannot work together: there is no memory to swap to.",
        ),
        (["--swap-space", "4"], "bytes here, and not of GiB. What is there for it: --swap-space-bytes."),
        (["--root-path", "x"], "--root-path x cannot work. It must be empty, or a path"),
        (["--shutdown-timeout", "nan"], "--shutdown-timeout nan cannot work. It must be a number."),
        (["--override-generation-config", "[1]"], "--override-generation-config [1] is no table. Write for example"),
        (["--chat-template", "/no"], "--chat-template /no cannot work. The file cannot be read: No such file"),
        (["--api-key", ""], "--api-key holds a key that cannot work."),
        (["a", "b"], "Got unexpected extra argument (b)"),
        (["--ssl-keyfile", "/no"], "--ssl-keyfile and --ssl-certfile belong together"),
    ],
)
def test_an_error_says_flag_and_value(words: list[str], said: str) -> None:
    assert said in bad(*words)


@pytest.mark.parametrize("flag", ["--hf-overrides", "--override-generation-config"])
@pytest.mark.parametrize(
    ("value", "told", "remedy"),
    [
        ("{bad", "is no JSON: Expecting property name", "Write for example {"),
        ("[1]", "is no table.", "Write for example {"),
        ('{"x": 1, "x": 2}', "has 'x' twice.", "Give it once."),
    ],
)
def test_what_is_no_table_is_told_alike_everywhere(flag: str, value: str, told: str, remedy: str) -> None:
    said = bad(flag, value)
    assert f"{flag} " in said and told in said and remedy in said
    result = invoke("complete", "x", "--offline", "--model", "no/such-model", flag, value)
    assert result.exit_code == 2 and result.stderr.rpartition("Error: ")[2].strip() == said


def test_an_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_MAX_NUM_SEQS", "0")
    assert bad() == "PELTON_MAX_NUM_SEQS=0 cannot work. It must be from 1 to 65536."
    monkeypatch.setenv("PELTON_MAX_NUM_SEQS", "many")
    assert bad() == "PELTON_MAX_NUM_SEQS=many cannot work. It must be a whole number."
    monkeypatch.setenv("PELTON_MAX_NUM_SEQS", "")
    monkeypatch.setenv("PELTON_SCHEDULING_POLICY", "lru")
    assert bad() == "PELTON_SCHEDULING_POLICY=lru cannot work. It must be one of fair, fcfs, lpm, priority, sjf."
    monkeypatch.setenv("PELTON_SCHEDULING_POLICY", "")
    monkeypatch.setenv("PELTON_API_KEY", "se\ncret")
    assert bad().startswith("PELTON_API_KEY holds a key that cannot work.") and "cret" not in bad()


def test_a_variable_that_nobody_reads(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_MAX_NUM_SEQ", "3")
    told = good().stderr
    assert (
        "note: The variable PELTON_MAX_NUM_SEQ is set, and nothing here reads it; did you mean PELTON_MAX_NUM_SEQS?"
        in told
    )
    monkeypatch.setenv("PELTON_FOO", "3")
    monkeypatch.setenv("PELTON_TENSOR_PARALLEL_SIZE", "2")
    told = good().stderr
    assert "note: The variable PELTON_FOO is set, and nothing here reads it.\n" in told
    assert "PELTON_TENSOR_PARALLEL_SIZE is set, and nothing here reads it: this version runs on one machine" in told
    monkeypatch.setenv("PELTON_ISA", "portable")
    assert "PELTON_ISA" not in good().stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-num-seq: 3\n", "max-num-seq is no setting. Did you mean --max-num-seqs?"),
        ("tensor-parallel-size: 2\n", "--tensor-parallel-size is not supported here: this version runs on one machine"),
        ("max-num-seqs: 0\n", "max-num-seqs: 0 cannot work. It must be from 1 to 65536."),
        ("max-num-seqs: true\n", "max-num-seqs: True cannot work. It must be a whole number."),
        ("strict: maybe\n", "strict: maybe cannot work. It must be true or false."),
        (
            "scheduling-policy: lru\n",
            "scheduling-policy: lru cannot work. It must be one of fair, fcfs, lpm, priority, sjf.",
        ),
        ("override-generation-config: {top_p: 7}\n", "override-generation-config: top_p=7.0 is out of range."),
        ("host: 1\n", "host: 1 cannot work. It must be text."),
        ("port: 1\nPORT: 2\n", "PORT is no setting."),
        ("max-num-seqs: 1\nparallel: 2\n", "are the same setting."),
        ("- port\n", "must hold a table"),
        ("port: [\n", "is no YAML, line 2."),
        ("port: 1\nhost: a\nport: 2\n", "has port twice, line 3."),
        ("override-generation-config:\n  top_k: 1\n  top_k: 2\n", "has top_k twice, line 3."),
        ("api-key: []\n", "api-key is set but empty."),
        ("served-model-name: []\n", "served-model-name is set but empty."),
    ],
)
def test_an_error_names_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    told = re.sub(r"\s+", " ", bad("--config", str(file)))
    assert str(file) in told and said in told


REFUSALS = (
    (
        CapacityError(
            "kv_cache_memory_bytes=966367641600 takes much.", "Set kv_cache_memory_bytes to at most 2.0 MiB."
        ),
        ("--kv-cache-memory-bytes", "900G"),
        "error: --kv-cache-memory-bytes 900G takes much. Set --kv-cache-memory-bytes to at most 2.0 MiB.",
        "error: PELTON_KV_CACHE_MEMORY_BYTES=900G takes much. Set PELTON_KV_CACHE_MEMORY_BYTES to at most 2.0 MiB.",
        "error: FILE: kv-cache-memory-bytes: 900G takes much. Set kv-cache-memory-bytes to at most 2.0 MiB.",
    ),
    (
        BackendError("backend='reference' needs torch, which is not installed.", "Install it (pip install torch)."),
        ("--backend", "reference"),
        "error: --backend reference needs torch, which is not installed. Install it (pip install torch).",
        "error: PELTON_BACKEND=reference needs torch, which is not installed. Install it (pip install torch).",
        "error: FILE: backend: reference needs torch, which is not installed. Install it (pip install torch).",
    ),
    (
        SettingError("max_model_len=99 is too long.", "Set max_model_len=9, or num_blocks=2."),
        ("--max-model-len", "99"),
        "error: --max-model-len 99 is too long. Set --max-model-len 9, or --num-blocks 2.",
        "error: PELTON_MAX_MODEL_LEN=99 is too long. Set PELTON_MAX_MODEL_LEN=9, or --num-blocks 2.",
        "error: FILE: max-model-len: 99 is too long. Set max-model-len: 9, or --num-blocks 2.",
    ),
)


@pytest.mark.parametrize(("error", "words", "flag", "variable", "key"), REFUSALS)
def test_what_fails_later_is_told_as_it_was_written(
    caught: Caught,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
    words: tuple[str, str],
    flag: str,
    variable: str,
    key: str,
) -> None:
    def fail(*rest: object) -> None:
        raise error

    monkeypatch.setattr("pelton.cli.commands.serve.run", fail)
    name = words[0].removeprefix("--")
    assert invoke("serve", *words).stderr.strip() == flag
    with monkeypatch.context() as patch:
        patch.setenv(f"PELTON_{name.replace('-', '_').upper()}", words[1])
        assert invoke("serve").stderr.strip() == variable
    file = tmp_path / "serve.yaml"
    file.write_text(f"{name}: {words[1]}\n")
    result = invoke("serve", "--config", str(file))
    assert result.exit_code == 1 and result.stderr.strip() == key.replace("FILE", str(file))
    assert invoke("serve", *words, "--debug").exception is error


def test_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bad("--config", "/no/such.yaml") == "--config /no/such.yaml cannot be read: No such file or directory."
    monkeypatch.setenv("PELTON_CONFIG", "/nor/this.yaml")
    assert bad() == "PELTON_CONFIG=/nor/this.yaml cannot be read: No such file or directory."


@pytest.mark.parametrize("name", ["PELTON_API_KEY", "PELTON_SERVED_MODEL_NAME", "PELTON_ALLOWED_ORIGINS"])
@pytest.mark.parametrize("text", ["", ",", " ", " , ", "[]"])
def test_a_list_that_is_empty_is_no_list(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Above all the server is not open to all because its key got lost."""
    monkeypatch.setenv(name, text)
    assert bad() == f"{name} is set but empty. Give it a value, or remove it."


def test_what_stands_in_a_setting_is_not_told_as_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "temperature=-1.0 is out of range. It must be 0 or more."
    text = '{"temperature": -1}'
    assert bad("--override-generation-config", text) == f"--override-generation-config: {said}"
    monkeypatch.setenv("PELTON_OVERRIDE_GENERATION_CONFIG", text)
    assert bad() == f"PELTON_OVERRIDE_GENERATION_CONFIG: {said}"


def test_an_empty_file(caught: Caught, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    good("--config", str(tmp_path / "empty.yaml"))
    assert caught.calls == 1


def test_help_is_grouped() -> None:
    shown = invoke("serve", "--help").stdout
    titles = [setting.group for setting in SETTINGS.values()]
    assert [line[:-1] for line in shown.splitlines() if line[:-1] in titles] == list(dict.fromkeys(titles))
    for setting in SETTINGS.values():
        assert setting.flag in shown
    assert "--parallel" not in shown


def test_every_flag_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    named = set(re.findall(r"`(-{1,2}[a-z][a-z-]*)(?=[` ,])", page))
    others = {"--config", "--verbose", "--help", "--url", "--max-tokens", "-m"}
    others |= {"--no-enable-prefix-caching", "--no-partial-prefix-blocks"}
    assert named - others == {setting.flag for setting in SETTINGS.values()} | set(ALIASES) | set(ALWAYS_ON)
