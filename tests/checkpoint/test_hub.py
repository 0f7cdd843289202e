"""Fetching models from a Hub on the loopback: which files, how often, what is kept, and what is said when it fails."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save
from tests.checkpoint.fake_hub import FakeHub, Repository, commit_of, running_hub, use_hub
from tests.checkpoint.gguf_files import model_bytes

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.fetch import hub as hub_module
from pelton.checkpoint.fetch.pull import pull
from pelton.core.config import FetchSection
from pelton.core.errors import CheckpointError, SettingError

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "eos_token_id": 7}
WEIGHTS = save({"model.norm.weight": np.arange(1000, dtype=np.float32)})
GGUF = model_bytes()
FOLDER = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "LICENSE": b"free",
    "README.md": b"# It",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "original/consolidated.00.pth": b"pickle",
    "onnx/model.onnx": b"onnx",
    "tf_model.h5": b"h5",
}
TAKEN = {"LICENSE", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"}


def quants(*names: str) -> dict[str, bytes]:
    """GGUF files of these names, each with a content of its own."""
    return {name: GGUF + name.encode() for name in names}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub that is the default one, an empty cache, and no token."""
    with running_hub(
        org__folder=Repository({"main": FOLDER, "v1": FOLDER | {"tokenizer.json": b'{"v": 1}'}}),
        org__quants=Repository({"main": quants("m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-F16.gguf", "mmproj-m-f16.gguf")}),
    ) as fake:
        use_hub(fake, tmp_path, monkeypatch)
        yield fake
    huggingface_hub.close_session()


def refusal(reference: str, **settings: object) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        pull(reference, FetchSection(**settings))  # type: ignore[arg-type]
    return caught.value


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_a_folder(hub: FakeHub, tmp_path: Path) -> None:
    path = pull("org/folder")
    assert path == tmp_path / "hub" / "models--org--folder" / "snapshots" / commit_of("main")
    assert names(path) == TAKEN, "no pickles, no copies in other formats"
    assert sorted(set(hub.downloads())) == sorted(TAKEN)
    checkpoint = open_checkpoint("org/folder")
    assert (checkpoint.layout, checkpoint.config, checkpoint.chat_template) == ("hf", CONFIG, "{{ messages }}")
    assert checkpoint.fingerprint()
    checkpoint.close()
    assert len(hub.downloads()) == len(TAKEN), "once"
    assert pull("hf://org/folder") == path


def test_other_programs_find_what_was_fetched(hub: FakeHub, tmp_path: Path) -> None:
    pull("org/folder")
    asked = len(hub.downloads())
    for name in TAKEN:
        found = huggingface_hub.hf_hub_download("org/folder", name, local_files_only=True)
        assert Path(found).read_bytes() == FOLDER[name]
    assert len(hub.downloads()) == asked


def test_what_other_programs_fetched_is_found(hub: FakeHub) -> None:
    for name in sorted(TAKEN):
        huggingface_hub.hf_hub_download("org/folder", name, endpoint=hub.url)
    hub.asked.clear()
    assert names(pull("org/folder")) == TAKEN
    assert hub.downloads() == []
    assert names(pull("org/folder", FetchSection(offline=True))) == TAKEN


def test_the_file_of_a_quantisation(hub: FakeHub) -> None:
    path = pull("org/quants:q8_0")
    assert path.name == "m-Q8_0.gguf"
    assert path.read_bytes() == GGUF + b"m-Q8_0.gguf"
    assert pull("org/quants:m-f16.gguf").name == "m-F16.gguf"
    assert hub.downloads() == ["m-Q8_0.gguf", "m-F16.gguf"]
    assert open_checkpoint("org/quants:Q8_0").layout == "gguf"


def test_without_a_choice_a_common_one_is_taken_and_told(hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
    assert pull("org/quants", progress=True).name == "m-Q4_K_M.gguf"
    assert capfd.readouterr().err.startswith(
        "note: org/quants has 3 GGUF models; m-Q4_K_M.gguf is taken (org/quants:Q4_K_M). Others: F16, Q8_0.\n"
    )


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (("m-Q8_0.gguf", "m-F16.gguf", "m-Q2_K.gguf"), "m-Q8_0.gguf"),
        (("m.f16.gguf", "m.q2_k.gguf"), "m.f16.gguf"),
        (("some.gguf", "imatrix-some.gguf"), "some.gguf"),
        (("Q4_K_M/m-Q4_K_M.gguf", "Q8_0/m-Q8_0.gguf"), "m-Q4_K_M.gguf"),
    ],
)
def test_the_order_of_preference(hub: FakeHub, files: tuple[str, ...], taken: str) -> None:
    hub.repositories["org/other"] = Repository({"main": quants(*files)})
    assert pull("org/other").name == taken


def test_split_files_are_taken_whole(hub: FakeHub) -> None:
    parts = [f"big/m-Q4_K_M-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    hub.repositories["org/split"] = Repository({"main": quants(*parts, "m-Q8_0.gguf")})
    path = pull("org/split:Q4_K_M")
    assert path.as_posix().endswith(parts[0])
    assert sorted(found.name for found in path.parent.iterdir()) == [Path(part).name for part in parts]
    hub.repositories["org/torn"] = Repository({"main": quants(*parts[:2])})
    assert "1 more of its files are missing" in refusal("org/torn:Q4_K_M").cause


@pytest.mark.parametrize(
    ("reference", "cause", "remedy"),
    [
        ("org/quants:Q2_K", "no GGUF model 'Q2_K'. There are: m-F16.gguf, m-Q4_K_M.gguf, m-Q8_0.gguf.", "org/quants:"),
        ("org/two:Q8_0", "means 2 GGUF models: a-Q8_0.gguf, b-Q8_0.gguf.", "org/two:a-Q8_0.gguf"),
        ("org/two", "org/two has 2 GGUF models: a-Q8_0.gguf, b-Q8_0.gguf.", "org/two:Q8_0"),
        ("org/folder:Q8_0", "has no GGUF file to choose 'Q8_0' from", "Leave :Q8_0 out"),
        ("org/pickles", "as Python pickles alone", "safetensors"),
        ("org/bare", "has safetensors files, but config.json is missing", "config.json"),
        ("org/odd", "neither model.safetensors nor model.safetensors.index.json", "safetensors"),
        ("org/empty", "It has: nothing.", "safetensors"),
    ],
)
def test_choices_that_are_none(hub: FakeHub, reference: str, cause: str, remedy: str) -> None:
    hub.repositories |= {
        "org/two": Repository({"main": quants("a-Q8_0.gguf", "b-Q8_0.gguf")}),
        "org/pickles": Repository({"main": {"config.json": b"{}", "pytorch_model.bin": b"x"}}),
        "org/bare": Repository({"main": {"model.safetensors": WEIGHTS}}),
        "org/odd": Repository({"main": {"config.json": b"{}", "weights.safetensors": WEIGHTS}}),
        "org/empty": Repository({"main": {}}),
    }
    error = refusal(reference)
    assert cause in error.cause
    assert remedy in error.remedy
    assert hub.downloads() == []


def test_shards_by_their_index(hub: FakeHub) -> None:
    table = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}
    shards = {
        "m-1.safetensors": save({"a": np.ones(300, np.float32), "c": np.ones(2, np.float32)}),
        "m-2.safetensors": save({"b": np.ones(300, np.float32)}),
    }
    files = {"config.json": FOLDER["config.json"], "model.safetensors.index.json": json.dumps(table).encode(), **shards}
    hub.repositories["org/shards"] = Repository({"main": files | {"consolidated.safetensors": WEIGHTS}})
    assert names(pull("org/shards")) == set(files)
    assert sorted(open_checkpoint("org/shards").tensors) == ["a", "b", "c"]
    del files["m-2.safetensors"]
    hub.repositories["org/torn"] = Repository({"main": files})
    assert "1 of 2 weight files are missing: m-2.safetensors" in refusal("org/torn").cause
    assert "m-1.safetensors" not in hub.downloads()[-3:], "known before weights are fetched"


def test_revisions(hub: FakeHub) -> None:
    main, old = pull("org/folder"), pull("org/folder", FetchSection(revision="v1"))
    assert (old.name, (old / "tokenizer.json").read_bytes()) == (commit_of("v1"), b'{"v": 1}')
    assert (main / "tokenizer.json").read_bytes() == b"{}"
    assert (old / "model.safetensors").samefile(main / "model.safetensors"), "kept once"
    assert hub.downloads().count("model.safetensors") == 1
    hub.asked.clear()
    assert pull("org/folder", FetchSection(revision=commit_of("v1"))) == old
    assert hub.asked == [], "a commit that is here needs no question"
    assert "has no revision 'v2'" in refusal("org/folder", revision="v2").cause
    hub.repositories["org/folder"].revisions["main"] = FOLDER | {"LICENSE": b"other"}
    assert (pull("org/folder") / "LICENSE").read_bytes() == b"other", "a branch moves"
    with pytest.raises(SettingError, match="revision='v1' is of a model of the Hub, and smollm2 is none"):
        pull("smollm2", FetchSection(revision="v1"))


def test_a_token_for_gated_and_private_ones(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.repositories["org/gated"] = Repository({"main": FOLDER}, gated=True, members=("hf_in",))
    hub.repositories["org/private"] = Repository({"main": FOLDER}, private=True, members=("hf_in",))
    error = refusal("org/gated")
    assert error.cause == "org/gated is gated: its owner grants access, and no token was sent."
    assert f"Ask for access at {hub.url}/org/gated, then give a token of that account: HF_TOKEN or --hf-token" in (
        error.remedy
    )
    error = refusal("org/gated", hf_token="hf_out")
    assert "the account of the token that was sent has no access" in error.cause
    assert "hf_out" not in str(error)
    error = refusal("org/private")
    assert error.cause == f"org/private is neither a path here nor a model at {hub.url}."
    assert "For a private or gated one give a token" in error.remedy
    assert "does not accept the token for org/folder" in refusal("org/folder", hf_token="bad").cause
    assert names(pull("org/gated", FetchSection(hf_token="hf_in"))) == TAKEN
    monkeypatch.setenv("HF_TOKEN", "hf_in")
    assert names(pull("org/private")) == TAKEN
    assert {token for path, _, token in hub.asked if path.startswith("/cdn/")} == {""}, "the token stays with the Hub"
    assert "hf_in" not in repr(FetchSection(hf_token="hf_in"))


def test_a_mirror(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_hub(org__only=Repository({"main": FOLDER})) as mirror:
        assert names(pull("org/only", FetchSection(hf_endpoint=f"{mirror.url}/"))) == TAKEN
        assert hub.asked == []
        mirror.garbled = True
        assert "does not answer like the Hub" in refusal("org/only", hf_endpoint=mirror.url).cause


def test_nobody_but_the_endpoint_is_asked(hub: FakeHub) -> None:
    pull("org/folder")
    assert all(path.startswith(("/api/models/org/folder/", "/org/folder/resolve/", "/cdn/")) for path in hub.paths())


def test_offline(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    error = refusal("org/folder", offline=True)
    assert "revision 'main' is not in the cache" in error.cause and "--offline" in error.cause
    assert hub.asked == []
    folder, file = pull("org/folder"), pull("org/quants:Q8_0")
    hub.asked.clear()
    assert pull("org/folder", FetchSection(offline=True)) == folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pull("org/quants:Q8_0") == file
    assert pull("org/quants") == file, "of what is here"
    assert "There are: m-Q8_0.gguf" in refusal("org/quants:F16").cause
    with pytest.raises(CheckpointError, match="org/folder: it is to be fetched again, and --offline"):
        pull("org/folder", force=True)
    (folder / "model.safetensors").unlink()
    assert "what is in the cache is not all of it" in refusal("org/folder").cause
    assert hub.asked == []


def test_where_nobody_answers_the_cache_stands_in(hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
    path = pull("org/folder")
    for status, endpoint in ((0, "http://127.0.0.1:9"), (503, hub.url)):
        hub.down = status
        assert pull("org/folder", FetchSection(hf_endpoint=endpoint), progress=True) == path
        told = f"note: {endpoint} cannot be reached; org/folder is taken from the cache.\n"
        assert capfd.readouterr().err == told
    cause = refusal("org/quants").cause
    assert "(status 503), and org/quants cannot be taken from the cache: revision 'main' is not in the cache" in cause
    hub.down = 429
    assert "takes no more requests" in refusal("org/quants").cause


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_without_a_network_an_error_comes_soon(hub: FakeHub, endpoint: str) -> None:
    began = time.monotonic()
    error = refusal("org/folder", hf_endpoint=endpoint)
    assert time.monotonic() - began < 12
    assert error.cause.startswith(f"{endpoint} cannot be reached (")
    assert "--hf-endpoint or HF_ENDPOINT" in error.remedy


def test_a_download_that_breaks_off_goes_on(hub: FakeHub) -> None:
    hub.cuts["model.safetensors"] = [1500]
    path = pull("org/folder")
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [span for path, span, _ in hub.asked if path.startswith("/cdn/")]
    assert ranges == ["", "bytes=1500-"]


def test_a_download_that_failed_goes_on_next_time(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.cuts["m-Q8_0.gguf"] = [700, 0, 0, 0, 0, 0, 0]
    error = refusal("org/quants:Q8_0")
    assert "The download of m-Q8_0.gguf of org/quants broke off" in error.cause
    assert "goes on from where it stopped" in error.remedy
    digest = hashlib.sha256(GGUF + b"m-Q8_0.gguf").hexdigest()
    blobs = tmp_path / "hub" / "models--org--quants" / "blobs"
    assert [(path.name, path.stat().st_size) for path in blobs.iterdir()] == [(f"{digest}.part", 700)]
    assert "not in the cache" in refusal("org/quants:Q8_0", offline=True).cause
    hub.cuts.clear()
    hub.asked.clear()
    assert pull("org/quants:Q8_0").read_bytes() == GGUF + b"m-Q8_0.gguf"
    assert [span for path, span, _ in hub.asked if path.startswith("/cdn/")] == ["bytes=700-"]
    assert [path.name for path in blobs.iterdir()] == [digest]


def test_what_is_there_is_not_said_to_be_missing(hub: FakeHub) -> None:
    pull("org/folder")
    for status, endpoint, what in (
        (0, "http://127.0.0.1:9", "cannot be reached ("),
        (503, hub.url, "is out of order (status 503), and org/folder was to be fetched again."),
    ):
        hub.down = status
        with pytest.raises(CheckpointError) as caught:
            pull("org/folder", FetchSection(hf_endpoint=endpoint), force=True)
        assert caught.value.cause.startswith(f"{endpoint} {what}")
        assert "and org/folder was to be fetched again" in caught.value.cause
        assert caught.value.remedy.startswith("Leave --force out")


def part_of(hub: FakeHub, tmp_path: Path, content: bytes) -> Path:
    """What is left of a download of m-Q8_0.gguf, whose end is `content`."""
    digest = hashlib.sha256(hub.repositories["org/quants"].revisions["main"]["m-Q8_0.gguf"]).hexdigest()
    part = tmp_path / "hub" / "models--org--quants" / "blobs" / f"{digest}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(content)
    return part


def test_a_part_that_is_too_long_is_begun_anew(hub: FakeHub, tmp_path: Path) -> None:
    whole = GGUF + b"m-Q8_0.gguf"
    part_of(hub, tmp_path, whole + b"xxxx")
    assert pull("org/quants:Q8_0").read_bytes() == whole
    assert [span for path, span, _ in hub.asked if path.startswith("/cdn/")] == [""]


def test_a_part_that_the_hub_does_not_go_on_from_is_begun_anew_once(hub: FakeHub, tmp_path: Path) -> None:
    whole = GGUF + b"m-Q8_0.gguf"
    part = part_of(hub, tmp_path, whole[:900])
    hub.changed["m-Q8_0.gguf"] = whole[:800]  # no byte 900
    error = refusal("org/quants:Q8_0")
    assert [span for path, span, _ in hub.asked if path.startswith("/cdn/")] == ["bytes=900-", ""]
    assert "broke off" in error.cause and part.stat().st_size == 800
    hub.changed.clear()
    part_of(hub, tmp_path, whole[:900])
    hub.no_ranges = True
    assert pull("org/quants:Q8_0").read_bytes() == whole


def test_more_than_was_told_is_nothing_to_go_on_from(hub: FakeHub, tmp_path: Path) -> None:
    hub.changed["m-Q8_0.gguf"] = GGUF + b"m-Q8_0.gguf and more"
    error = refusal("org/quants:Q8_0")
    assert "broke off" in error.cause and "goes on" not in error.remedy
    hub.changed.clear()
    assert pull("org/quants:Q8_0").read_bytes() == GGUF + b"m-Q8_0.gguf"


@pytest.mark.dist
def test_a_killed_download_goes_on(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/quants"].revisions["main"]["m-Q8_0.gguf"] += bytes(50_000)
    hub.cuts["m-Q8_0.gguf"] = [40_000]
    script = (
        "import os, time; from huggingface_hub import constants; from pelton.checkpoint.fetch.pull import pull\n"
        "constants.DOWNLOAD_CHUNK_SIZE = 100\n"
        "time.sleep = lambda seconds: os.kill(os.getpid(), 9)\n"  # before the library tries again
        "pull('org/quants:Q8_0')"
    )
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", script], env={**os.environ, **variables}, timeout=50)
    assert killed.returncode == -9
    (part,) = (tmp_path / "hub" / "models--org--quants" / "blobs").iterdir()
    kept = part.stat().st_size
    pull("org/quants:Q8_0")
    spans = [span for path, span, _ in hub.asked if path.startswith("/cdn/")]
    assert spans == ["", f"bytes={kept}-"] and kept > 10_000


@pytest.mark.parametrize(("name", "reference"), [("m-Q8_0.gguf", "org/quants:Q8_0"), ("config.json", "org/folder")])
def test_changed_content_is_no_model(hub: FakeHub, tmp_path: Path, name: str, reference: str) -> None:
    whole = hub.repositories[reference.partition(":")[0]].revisions["main"][name]
    hub.changed[name] = bytes([whole[0] ^ 1]) + whole[1:]
    error = refusal(reference)
    assert f"{name} of {reference.partition(':')[0]} is damaged" in error.cause
    assert "the mirror or a proxy changes files" in error.remedy
    hub.changed.clear()
    assert pull(reference)


def test_damage_is_found_where_it_is_looked_for(hub: FakeHub) -> None:
    path = pull("org/quants:Q8_0")
    with path.open("r+b") as file:
        file.write(b"damage")
    assert pull("org/quants:Q8_0").read_bytes()[:6] == b"damage", "not read at every start"
    for settings in (FetchSection(), FetchSection(offline=True)):
        content = path.resolve().read_bytes()
        with pytest.raises(CheckpointError, match="is damaged"):
            pull("org/quants:Q8_0", settings, verify=True)
        path.resolve().write_bytes(content)
    path.resolve().unlink()
    assert pull("org/quants:Q8_0", verify=True).read_bytes().startswith(b"GGUF")
    assert pull("org/quants:Q8_0", force=True).read_bytes().startswith(b"GGUF")
    assert hub.downloads().count("m-Q8_0.gguf") == 3


def test_a_full_disk(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
        error = refusal("org/quants:Q8_0")
        assert "no space is left on the disk: org/quants takes" in error.cause and "HF_HOME" in error.remedy
        assert hub.downloads() == []

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(hub_module, "http_get", full)
    assert refusal("org/quants:Q8_0").cause.endswith("no space is left on the disk.")


def test_a_cache_that_cannot_be_written(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal("org/folder", download_dir=str(tmp_path / "file"))
    assert "Make the cache writable" in error.remedy


def test_another_folder(hub: FakeHub, tmp_path: Path) -> None:
    path = pull("org/folder", FetchSection(download_dir=str(tmp_path / "own")))
    assert path.is_relative_to(tmp_path / "own")
    assert not (tmp_path / "hub").exists()


QUANTISED = [
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "'awq' (4 bits, groups of 128)", "packed 4-bit weights"),
    ({"quant_method": "gptq", "bits": 8}, "'gptq' (8 bits)", "column order"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "'fp8'", "8-bit floating point"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes' (4 bits)", "NF4"),
    ({"load_in_8bit": True}, "'bitsandbytes'", "8-bit outlier"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "'compressed-tensors'", "no config_groups"),
    ({"quant_method": "mxfp4"}, "'mxfp4'", "shared exponent"),
    ({"quant_method": "someday"}, "'someday'", "is not supported yet."),
]


@pytest.mark.parametrize(("entry", "method", "need"), QUANTISED)
def test_quantised_ones_are_refused_before_their_weights_come(
    hub: FakeHub, entry: dict[str, object], method: str, need: str
) -> None:
    config = json.dumps(CONFIG | {"quantization_config": entry}).encode()
    hub.repositories["org/quantised"] = Repository({"main": FOLDER | {"config.json": config}})
    error = refusal("org/quantised")
    assert error.cause.startswith(f"org/quantised: config.json: quantization method {method} is not supported yet")
    assert need in error.cause
    assert "Take a GGUF of this model" in error.remedy
    assert "model.safetensors" not in hub.downloads()


@pytest.mark.parametrize(
    ("file", "content", "method"),
    [
        ("hf_quant_config.json", {"producer": {}, "quantization": {"quant_algo": "NVFP4"}}, "'NVFP4'"),
        ("quantize_config.json", {"bits": 4, "group_size": 32}, "'gptq' (4 bits, groups of 32)"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64}, "'awq' (4 bits, groups of 64)"),
        ("config.json", CONFIG | {"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "'fp8'"),
        ("config.json", CONFIG | {"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
    ],
)
def test_quantisation_told_elsewhere(hub: FakeHub, file: str, content: dict[str, object], method: str) -> None:
    hub.repositories["org/q"] = Repository({"main": FOLDER | {file: json.dumps(content).encode()}})
    error = refusal("org/q")
    assert f"{file}: quantization method" in error.cause and method in error.cause


def test_names_that_leave_the_folder_are_passed_over(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/evil"] = Repository({"main": quants("../../../m-Q8_0.gguf", "/x/m-Q4_0.gguf", "m.gguf")})
    assert pull("org/evil").name == "m.gguf"
    assert hub.downloads() == ["m.gguf"]


@pytest.mark.parametrize("sign", "\0\n\x1b\x7f\x9b\u202e")
def test_names_with_control_characters_are_passed_over(hub: FakeHub, sign: str) -> None:
    hub.repositories["org/evil"] = Repository({"main": quants(f"m{sign}-Q8_0.gguf", "m-f\u00fcr.gguf")})
    assert pull("org/evil").name == "m-f\u00fcr.gguf"
    hub.repositories["org/worse"] = Repository({"main": quants(f"m{sign}.gguf")})
    assert "does not tell the commit or the files" in refusal("org/worse").cause


@pytest.mark.parametrize(
    ("reference", "settings"),
    [
        ("org/quants:" + "x" * 5000, {}),
        ("org/folder:" + "x" * 5000, {}),
        ("org/folder", {"revision": "x" * 5000}),
        ("org/folder", {"revision": "x" * 5000, "offline": True}),
        ("o" * 5000 + "/folder", {}),
        ("o" * 5000, {}),
        ("pypi:" + "!" * 5000, {}),
        ("./no\nsuch\x1b[31m/file", {}),
        ("org/quants:\x1b[31m\x07", {}),
    ],
)
def test_errors_are_short_and_of_one_line(hub: FakeHub, reference: str, settings: dict[str, object]) -> None:
    told = str(refusal(reference, **settings))
    assert len(told) < 1500 and told.isprintable()


def test_settings_alone(hub: FakeHub) -> None:
    path = pull("org/folder", weights=False)
    assert names(path) == TAKEN - {"model.safetensors"}
    assert pull("org/folder", FetchSection(offline=True), weights=False) == path
    assert "not all of it" in refusal("org/folder", offline=True).cause
    assert names(pull("org/folder")) == TAKEN


def test_bars_and_lines(hub: FakeHub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/big"] = Repository({"main": {"m.gguf": GGUF + bytes(2_000_000)}})
    pull("org/big", progress=True)
    assert capfd.readouterr() == ("", "fetching org/big (2 MB)\nfetched org/big\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    pull("org/big", progress=True, force=True)
    out, bars = capfd.readouterr()
    assert out == "" and "m.gguf: 100%" in bars and "fetching" not in bars
