"""Every door takes a model of the Hub by its name: commands, a server's settings, Python. It runs on the loopback."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from tests.checkpoint.fake_hub import FakeHub, Repository, commit_of, running_hub, use_hub
from tests.cli.running import invoke, modules_after, run

from pelton import LLM, SamplingParams
from pelton.core.errors import CheckpointError

GREEDY = ("--temperature", "0", "--max-tokens", "4")
PROMPT = "The capital of France is"


@pytest.fixture
def hub(tmp_path: Path, smollm2: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub with the default model as a GGUF, and a folder with a real tokenizer and weights of no known family."""
    tokenizer = lzma.decompress((data / "tokenizer" / "vocab" / "qwen3.tokenizer.json.xz").read_bytes())
    config = {"model_type": "odd", "architectures": ["OddForCausalLM"]}
    folder = {"config.json": json.dumps(config).encode(), "tokenizer.json": tokenizer, "model.safetensors": bytes(2000)}
    with running_hub(
        org__smol=Repository({"main": {"smol-Q4_1.gguf": smollm2.read_bytes()}}),
        org__odd=Repository({"main": folder}),
    ) as fake:
        use_hub(fake, tmp_path, monkeypatch)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 20)
        yield fake
    huggingface_hub.close_session()


@pytest.mark.slow
@pytest.mark.dist
def test_commands_and_python(hub: FakeHub, smollm2: Path) -> None:
    wanted = run("complete", "-m", str(smollm2), PROMPT, *GREEDY)
    assert wanted.returncode == 0, wanted.stderr
    first = run("complete", "-m", "org/smol:Q4_1", PROMPT, *GREEDY)
    assert (first.returncode, first.stdout) == (0, wanted.stdout)
    assert b"fetching org/smol (98 MB)\nfetched org/smol\n" in first.stderr
    assert hub.downloads() == ["smol-Q4_1.gguf"]
    again = run("complete", "--model", "org/smol", "--offline", PROMPT, *GREEDY)
    assert (again.returncode, again.stdout, again.stderr) == (0, wanted.stdout, b"")
    piped = run("complete", "org/smol:Q4_1", *GREEDY, stdin=PROMPT.encode(), HF_HUB_OFFLINE="1")
    assert piped.stdout == wanted.stdout, "a lone argument that looks like a model is one"
    assert run("chat", "org/smol", "--offline", "-q", "Hello", *GREEDY).returncode == 0
    assert json.loads(run("program", "org/smol", "--json").stdout)["vocab"] == 49152
    with LLM("org/smol", revision="main", offline=True, max_model_len=64) as llm:
        (output,) = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert output.outputs[0].text.strip() == wanted.stdout.decode().strip()
    assert hub.downloads() == ["smol-Q4_1.gguf"]


def test_pull_tells_where_it_is(hub: FakeHub, tmp_path: Path) -> None:
    result = invoke("pull", "org/smol:Q4_1")
    path = tmp_path / "hub" / "models--org--smol" / "snapshots" / commit_of("main") / "smol-Q4_1.gguf"
    assert result.stdout == f"{path}\n"
    assert result.stderr.endswith("org/smol:Q4_1 is ready, 93.8 MiB\n")
    assert invoke("pull", "org/smol", "--path", "--revision", "nope").stderr.startswith(
        "error: org/smol has no revision 'nope'."
    )


def test_tokens_are_counted_without_fetching_weights(hub: FakeHub) -> None:
    result = invoke("tokens", "-", "-m", "org/odd", "--json", stdin="Hello, world")
    assert json.loads(result.stdout)["total"][0]["tokens"] == 3
    assert result.stderr.splitlines()[-1] == (
        "note: org/odd is not here as a whole; pelton pull org/odd fetches it, for its costs."
    )
    assert "model.safetensors" not in hub.downloads()


def test_a_tokenizer_of_the_hub_comes_without_weights(hub: FakeHub, smollm2: Path) -> None:
    with LLM(str(smollm2), tokenizer="org/odd", max_model_len=64) as llm:
        assert llm.get_tokenizer().encode("Hello, world") == [9707, 11, 1879]
    assert "model.safetensors" not in hub.downloads()


def test_what_is_wrong_with_a_setting() -> None:
    for words, told in (
        ("pull org/x --hf-endpoint hub.example", "--hf-endpoint hub.example cannot work. It must begin with http://"),
        ("pull smollm2 --revision v1", "error: revision='v1' is of a model of the Hub, and smollm2 is none."),
        ("serve org/x --hf-endpoint hub.example", "--hf-endpoint hub.example cannot work."),
    ):
        assert told.replace("error: ", "") in invoke(*words.split()).stderr.replace("--revision v1", "revision='v1'")
    result = invoke("serve", "org/x", "--hf-token", " ")
    assert "--hf-token is empty" in result.stderr


def test_a_token_is_not_told(hub: FakeHub) -> None:
    hub.repositories["org/gated"] = Repository({"main": {"a.gguf": b"x"}}, gated=True)
    result = invoke("serve", "org/gated", "--hf-token", "hf_secret", "--port", "0", "--verbose")
    assert result.exit_code == 1
    assert "setting  hf_token: --hf-token\n" in result.stderr
    assert "org/gated is gated" in result.stderr
    assert "hf_secret" not in result.stderr
    with pytest.raises(CheckpointError) as caught:
        LLM("org/gated", hf_token="hf_secret")
    assert "hf_secret" not in str(caught.value)


def test_the_library_is_imported_for_the_hub_alone(smollm2: Path) -> None:
    assert "huggingface_hub" not in modules_after("pull", "smollm2", "--path")
    assert "huggingface_hub" not in modules_after("complete", "-m", "smollm2", "hi", "--max-tokens", "1")
