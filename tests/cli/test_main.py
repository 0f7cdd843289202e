"""The frame: help, unknown words, errors and exit codes, streams that are full or closed."""

import logging
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from tests.cli.running import RUN, environment, invoke, modules_after, run

from pelton.cli.main import COMMANDS
from pelton.cli.options import ENGINE_HELP, ENGINE_SECTIONS, explain, looks_like_model, parse_length, parse_size
from pelton.cli.terminal import Status
from pelton.core.errors import CheckpointError, RequestError, SettingError

MISSING = "no/such/model.gguf"


def test_help_lists_the_commands() -> None:
    shown = invoke("--help").stdout
    for name, (_, text) in COMMANDS.items():
        assert f"{name} " in shown and text in shown


def test_help_imports_no_command() -> None:
    modules = modules_after("--help")
    assert "pelton.cli.main" in modules
    assert not {"numpy", "tokenizers", "jinja2", "pelton.engine", "pelton.cli.commands.chat"} & modules


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"pelton {command}" in result.stdout or f"cli {command}" in result.stdout


@pytest.mark.parametrize("command", ["complete", "chat", "serve", "verify", "bench latency", "bench throughput"])
def test_help_lists_the_choices(command: str) -> None:
    shown = " ".join(invoke(*command.split(), "--help").stdout.split())
    assert "What executes the model: cpu, reference." in shown
    assert "How keys and values are stored: plain." in shown
    assert "auto and bfloat16 are the same; float32 is exact" in shown
    assert command == "verify" or "Order of the requests: fair, fcfs, lpm, priority, sjf. [fcfs]" in shown


def test_the_line_about_loading_tells_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    logger = logging.getLogger("pelton")
    before = (logger.level, list(logger.handlers))
    with Status("loading x ...") as status:
        logger.warning("told later")
        logger.info("building the %s", "tokenizer")
        logger.debug("untold")
    assert capfd.readouterr() == ("", "\r\033[Kloading x ...\r\033[Kbuilding the tokenizer ...\r\033[K")
    assert status.warnings == ("told later",)
    assert (logger.level, logger.handlers) == before


def test_version() -> None:
    assert invoke("--version").stdout.startswith("pelton, version ")


def test_an_unknown_command_names_the_nearest() -> None:
    result = invoke("colect-env")
    assert result.exit_code == 2
    assert "There is no command 'colect-env'. Did you mean 'collect-env'?" in result.stderr


@pytest.mark.parametrize(
    ("command", "wrong", "right"),
    [
        ("complete", "--temprature", "--temperature"),
        ("chat", "--max-token", "--max-tokens"),
        ("program", "--unfsed", "--unfused"),
    ],
)
def test_an_unknown_flag_names_the_nearest(command: str, wrong: str, right: str) -> None:
    result = invoke(command, wrong, "1")
    assert result.exit_code == 2
    assert wrong in result.stderr and right in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("complete hi --backend cuda", "--backend cuda cannot work. It must be one of cpu, reference."),
        ("verify --backend cuda", "--backend cuda cannot work. It must be one of cpu, reference."),
        ("complete hi --kv-codec fp8", "--kv-codec fp8 cannot work. It must be plain."),
        (
            "chat --scheduling-policy lru",
            "--scheduling-policy lru cannot work. It must be one of fair, fcfs, lpm, priority, sjf.",
        ),
        (
            "complete hi --kv-cache-memory-bytes 64M --num-blocks 10",
            "--kv-cache-memory-bytes 64M and --num-blocks 10 both say how large the KV cache is. Give one of them.",
        ),
        (
            "complete hi --kv-disk-bytes 1G --no-enable-prefix-caching",
            "--kv-disk-bytes 1G and --no-enable-prefix-caching cannot work together: what goes to the disk are "
            "prefixes, and none are kept. Leave one of them out.",
        ),
        ("bench latency -c 9", "There is no flag -c here. What is there for it: --max-model-len."),
        ("verify --ctx-size 9", "There is no flag --ctx-size here. What is there for it: --max-model-len."),
        ("complete hi --xyzzy", "There is no flag --xyzzy. pelton complete --help lists what there is."),
    ],
)
def test_bad_settings_are_told_before_the_model_is_touched(words: str, said: str) -> None:
    result = invoke(*words.split(), "--model", MISSING)
    assert result.exit_code == 2
    assert result.stderr.rpartition("Error: ")[2].strip().replace("cli complete", "pelton complete") == said


NO_TORCH = "import sys; sys.modules['torch'] = None; "


@pytest.mark.parametrize(
    "words",
    [
        ("complete", "hi"),
        ("chat", "-q", "hi"),
        ("verify",),
        ("bench", "throughput", "--num-prompts", "1"),
        ("bench", "latency"),
    ],
)
def test_a_backend_without_its_package_is_told_in_one_line(words: tuple[str, ...], smollm2: Path) -> None:
    done = run(*words, "--model", str(smollm2), "--backend", "reference", code=NO_TORCH + RUN)
    told = "error: --backend reference needs torch, which is not installed. Install it (pip install torch), or leave "
    assert done.stderr.decode() == f"{told}the setting out.\n"
    assert done.returncode == (2 if words == ("verify",) else 1) and not done.stdout


def test_a_size_is_told_as_it_was_written(smollm2: Path) -> None:
    result = invoke("complete", "hi", "--model", str(smollm2), "--kv-cache-memory-bytes", "9000G")
    told = r"error: --kv-cache-memory-bytes 9000G takes 8.8 TiB, and (\S+ MiB) of memory are free. "
    assert re.fullmatch(rf"{told}Set --kv-cache-memory-bytes to at most \1\.\n", result.stderr), result.stderr


@pytest.mark.parametrize(
    "words", [("complete", "-m", MISSING, "hi"), ("chat", MISSING), ("program", MISSING), ("pull", MISSING)]
)
def test_an_error_is_one_line(words: tuple[str, ...]) -> None:
    result = invoke(*words, stdin="")
    assert result.exit_code == 1
    assert result.stderr == f"error: {MISSING}: there is no such file or folder. Check the path of the model.\n"
    assert result.stdout == ""


def test_debug_shows_the_traceback() -> None:
    result = invoke("program", MISSING, "--debug")
    assert isinstance(result.exception, CheckpointError)


def test_every_setting_has_a_flag() -> None:
    """block_size has one value only, the model is an argument, and the only user has nobody beside him."""
    settings = {field.name for section in ENGINE_SECTIONS for field in fields(section)} - {"model", "block_size"}
    assert settings == set(ENGINE_HELP)
    shown = invoke("complete", "--help").stdout
    shared = {"max_num_queued_reqs", "context_cost", "fairness_weights", "session_seconds"}
    shared |= {"swap_space_bytes", "preemption_mode"}
    flags = {"--" + name.replace("_", "-") for name in settings - shared}
    assert {flag for flag in flags if flag in shown} == flags


@pytest.mark.parametrize(
    ("text", "size"), [("1048576", 2**20), ("512M", 2**29), ("1.5GiB", 3 * 2**29), ("64 kb", 2**16), ("2g", 2**31)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["9" * 400, "8388608T", "9" * 5000 + "k"])
def test_sizes_beyond_all_machines(text: str) -> None:
    result = invoke("complete", "--kv-cache-memory-bytes", text, "hi")
    assert result.exit_code == 2
    assert "more memory than a machine can address" in result.stderr


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("top_p=0.0 is out of range.", "--top-p 0.0 is out of range."),
        ("stop contains ''.", "--stop contains ''."),
        ("seed=-1 is bad; raise max_model_len.", "--seed -1 is bad; raise --max-model-len."),
        ("stop_token_ids contains -4.", "--stop-token-id contains -4."),
        ("Unknown kv_codec 'x'.", "Unknown --kv-codec 'x'."),
        ("kv_codec='x' is bad; backend='a b'.", "--kv-codec x is bad; --backend 'a b'."),
        ("a stop string; the backend; the dtype", "a stop string; the backend; the dtype"),
        ("in /models/num_blocks/x or my_num_blocks_2=3", "in /models/num_blocks/x or my_num_blocks_2=3"),
    ],
)
def test_errors_name_flags(said: str, shown: str) -> None:
    assert explain(SettingError(said)) == shown
    assert explain(CheckpointError(said)) == said


def test_a_missing_template_names_the_flag() -> None:
    error = RequestError("There is none.", "Give a chat template.", param="messages")
    assert explain(error).endswith("Give a chat template. The flag for it is --chat-template FILE.")


SLOW_IMPORT = (
    "import sys, types, os, signal, pelton.cli.main as m; "
    "m.COMMANDS['slow'] = ('slow_command:slow', ''); sys.path.insert(0, sys.argv.pop(1)); m.main()"
)


def test_ctrl_c_while_a_command_is_imported(tmp_path: Path) -> None:
    """No traceback of whatever was being imported."""
    (tmp_path / "slow_command.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)"
    )
    done = run(str(tmp_path), "slow", code=SLOW_IMPORT)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_variables_of_the_server_are_told(smollm2: Path) -> None:
    words = ("complete", "hi", "--model", str(smollm2), "--max-tokens", "1", "--max-num-seqs", "1")
    done = run(*words, PELTON_BACKEND="reference", PELTON_SEED="4", PELTON_MAX_NUM_SEQS="2", PELTON_THREADS="1")
    assert done.stderr.decode().splitlines() == [
        "note: The variable PELTON_BACKEND is for pelton serve alone; the flag here is --backend.",
        "note: The variable PELTON_SEED is for pelton serve alone.",
    ]


@pytest.mark.parametrize(
    ("text", "length"), [("4096", 4096), ("4k", 4000), (" 4K ", 4096), ("-1", "auto"), ("auto", "auto")]
)
def test_lengths(text: str, length: object) -> None:
    assert parse_length(text) == length


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """A line of shell in which $P is the command."""
    line = f"P='{sys.executable} -m pelton'; {command}"
    return subprocess.run(
        ["bash", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment()
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("$P complete hi --max-tokens 2 >/dev/full", "The output cannot be written: No space left on device."),
        ("$P program >/dev/full", "The output cannot be written: No space left on device."),
        ("$P --help >/dev/full", "No space left on device."),
        ("$P complete hi --max-tokens 2 >&-", "Standard output is closed, and there is nowhere to write to."),
        ("$P chat <&-", "Standard input is closed, and there is nothing else to read from."),
        ("$P complete <&-", "Standard input is closed, and there is nothing else to read from."),
        ("$P complete --prompt-file - <&-", "Standard input is closed, and there is nothing else to read from."),
    ],
)
def test_streams_that_are_full_or_closed(command: str, told: str) -> None:
    done = shell(command)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {told}\n")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "2>/dev/full", "<&- 2>&-"])
def test_streams_that_are_not_needed(closed: str) -> None:
    done = shell(f"$P complete hi --temperature 0 --max-tokens 2 --num-blocks 2 {closed}")
    assert done.returncode == 0 and done.stdout.strip()


@pytest.mark.parametrize("text", ["", "much", "-5M", "5X", "M"])
def test_no_sizes(text: str) -> None:
    result = invoke("complete", "--kv-cache-memory-bytes", text, "hi")
    assert result.exit_code == 2
    assert "is no number of bytes" in result.stderr


@pytest.mark.parametrize(
    "text", ["smollm2", "pypi:some-model", "./x", "~/models/x", "/x/y", "a/b.gguf", "x.gguf", "tests"]
)
def test_what_means_a_model(text: str) -> None:
    assert looks_like_model(text)


@pytest.mark.parametrize(
    "text", ["", " ", "Hello", "smollm", "Once upon a time.gguf ", "either/or", "a\0b", "x" * 5000]
)
def test_what_means_a_prompt(text: str) -> None:
    assert not looks_like_model(text)
