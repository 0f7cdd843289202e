"""Flags of other engines: what is said of those that mean nothing here, and of slips of the fingers."""

import pytest
from tests.cli.running import invoke
from tests.cli.test_serve_flags import bad

from pelton.cli.settings.serve_flags import SETTINGS
from pelton.core.config import ELSEWHERE, why_not
from pelton.core.errors import SettingError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-tp 2", "this version runs on one machine"),
        ("-ngl 99", "computes on the CPU alone"),
        ("--n-gpu-layers 99", "computes on the CPU alone"),
        ("--device cpu", "computes on the CPU alone"),
        ("--enforce-eager", "computes on the CPU alone"),
        ("--tokenizer-revision x", "a tokenizer of its own is taken as its repository has it now"),
        ("--hf-file x", "chosen with org/name:FILE"),
        ("--load-format auto", "the model's files say it themselves"),
        ("--trust-remote-code", "no code of a model is ever run"),
        ("--speculative-config {}", "comes with a later version"),
        ("--enable-lora", "comes with a later version"),
        ("--rope-freq-base 1e6", "the model's config says it"),
        ("--rope-freq-scale 0.5", "What is there for it: --hf-overrides."),
        ("--yarn-orig-ctx 4096", "it belongs to rope_scaling"),
        ("--yarn-ext-factor 1", "What is there for it: --hf-overrides."),
        ("--override-kv a=int:1", "What is there for it: --hf-overrides."),
        ("--grp-attn-n 4", "What is there for it: --hf-overrides."),
        ("--cache-type-k q8_0", "What is there for it: --kv-codec."),
        ("--cache-type-v q8_0", "What is there for it: --kv-codec."),
        ("-ctk q8_0", "keys and values are stored alike"),
        ("--mmproj x", "pictures come with a later version"),
        ("--no-mmap", "files are mapped"),
        ("--mlock", "the system keeps of them in memory what is used"),
        ("--flash-attn on", "one way to compute attention"),
        ("-fa", "one way to compute attention"),
        ("--jinja", "always rendered with Jinja"),
        ("--swa-full", "behind a window are never looked at"),
        ("--spm-infill", "in which order"),
        ("--disable-sliding-window", "the windows that it has"),
        ("--enable-auto-tool-choice", "tool calls come with a later version"),
        ("--api-server-count 4", "one process answers HTTP"),
        ("--gpu-memory-utilization 0.9", "What is there for it: --kv-cache-memory-bytes."),
        ("--swap-space 4", "it is a number of bytes here, and not of GiB"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "complete", "chat", "verify", "bench throughput", "bench latency"])
def test_why_a_flag_is_not_here(command: str, words: str, said: str) -> None:
    result = invoke(*command.split(), *words.split())
    assert result.exit_code == 2
    told = result.stderr.rpartition("Error: ")[2]
    assert told.startswith(f"{words.split()[0]} is not supported here: ") and said in told


RENAMED = {
    "complete": {"-p": "the argument PROMPT", "-f": "--prompt-file", "-n": "--max-tokens", "--temp": "--temperature"},
    "chat": {"-p": "--quick", "-f": "", "--n-predict": "--max-tokens", "--repeat-penalty": "--repetition-penalty"},
    "perplexity": {
        "-f": "the argument FILE",
        "-b": "--max-num-batched-tokens",
        "-n": "",
        "-ub": "--max-num-batched-tokens",
    },
    "verify": {"-p": "--prompts", "--predict": "--max-tokens", "-b": "", "--temp": ""},
    "serve": {"-n": "--override-generation-config", "-p": "", "--temp": "--override-generation-config"},
    "bench latency": {"-n": "--output-len", "-ctk": "--kv-codec", "--temp": ""},
    "program": {"--rope-scale": "--hf-overrides", "-b": "", "-ctv": ""},
    "tokens": {"--override-kv": "", "--file": "the argument FILE"},
}


@pytest.mark.parametrize("command", RENAMED)
def test_what_a_command_has_under_another_name(command: str) -> None:
    for flag, ours in RENAMED[command].items():
        told = invoke(*command.split(), "x", flag, "1").stderr.rpartition("Error: ")[2].strip()
        assert told.startswith(f"{flag} is not supported here: ")
        assert told.endswith(f" What is there for it: {ours}." if ours else ". Leave it out."), told


def test_words_that_click_would_take_apart() -> None:
    """-md is no -m, and -ctk no -c; behind -- and as the value of a flag they are texts like others."""
    for flag, line in {"-md": "-md small.gguf", "-ctk": "--stats -ctk q8_0", "-fa": "-fa", "-ngl": "-v -ngl 9"}.items():
        assert f"Error: {flag} is not supported here: " in invoke("complete", "hi", *line.split()).stderr
    for words in (("--suffix", "-fa", "-m", "/absent"), ("-m", "/absent", "--", "-md")):
        assert invoke("complete", *words, stdin="hi").stderr.startswith("error: /absent: there is no such file")


@pytest.mark.parametrize("flag", ["-c", "--ctx-size", "--max-model-len"])
@pytest.mark.parametrize("command", ["chat", "complete"])
def test_the_longest_text_in_the_spellings_of_serve(command: str, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def load(reference: str, flags: dict[str, object], *_: object) -> None:
        seen.append(flags["max_model_len"])
        raise SettingError("seen")

    monkeypatch.setattr(f"pelton.cli.commands.{command}.load", load)
    invoke(command, flag, "2k", *(("hi",) if command == "complete" else ("-q", "hi")))
    assert seen == [2000]


def test_only_slips_of_the_fingers_get_a_nearest_flag() -> None:
    assert bad("--max-num-seq", "2") == "There is no flag --max-num-seq. Did you mean --max-num-seqs?"
    for flag in ("--xyzzy", "--max-cats", "--enable-magic", "-x"):
        assert bad(flag) == f"There is no flag {flag}. pelton serve --help lists what there is."


def test_every_reason_is_about_a_setting_that_there_is_not() -> None:
    assert not set(ELSEWHERE) & set(SETTINGS) and len(set(ELSEWHERE)) == len(ELSEWHERE)
    with pytest.raises(KeyError):
        why_not("port")
