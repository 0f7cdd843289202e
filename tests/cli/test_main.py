"""The frame: help, unknown words, errors and exit codes."""

from dataclasses import fields

import pytest
from tests.cli.running import invoke, modules_after

from pelton.cli.main import COMMANDS
from pelton.cli.options import ENGINE_HELP, ENGINE_SECTIONS, looks_like_model, parse_size
from pelton.core.errors import CheckpointError

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
    """block_size has one value only, and the model is an argument."""
    settings = {field.name for section in ENGINE_SECTIONS for field in fields(section)} - {"model", "block_size"}
    assert settings == set(ENGINE_HELP)


@pytest.mark.parametrize(
    ("text", "size"), [("1048576", 2**20), ("512M", 2**29), ("1.5GiB", 3 * 2**29), ("64 kb", 2**16), ("2g", 2**31)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


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
