"""The frame: help, unknown words, errors and exit codes, streams that are full or closed."""

import subprocess
import sys
from dataclasses import fields

import pytest
from tests.cli.running import environment, invoke, modules_after

from pelton.cli.main import COMMANDS
from pelton.cli.options import ENGINE_HELP, ENGINE_SECTIONS, explain, looks_like_model, parse_size
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
    """block_size has one value only, the model is an argument, and nobody queues behind the only user."""
    settings = {field.name for section in ENGINE_SECTIONS for field in fields(section)} - {"model", "block_size"}
    assert settings == set(ENGINE_HELP)
    shown = invoke("complete", "--help").stdout
    flags = {"--" + name.replace("_", "-") for name in settings - {"max_num_queued_reqs"}}
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
    done = shell(f"$P complete hi --max-tokens 2 --num-blocks 2 {closed}")
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
