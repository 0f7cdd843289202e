"""What runs together: the whole matrix of the registries, and a start that is refused."""

from pathlib import Path
from typing import ClassVar

import pytest

from pelton.core.errors import BackendError, SettingError, UnknownNameError
from pelton.core.needs import Fact, Needs
from pelton.engine.llm import LLM
from pelton.engine.needs import chosen_needs, compatibility
from pelton.kv import KV_CODECS
from pelton.kv.codecs.plain import Plain
from pelton.quant import SCHEMES
from pelton.sampling import STEPS
from pelton.sampling.steps.top_k import TopK

HERE = "tests.engine.test_needs"


class Breaking(Plain):
    """A codec that says it changes what is stored."""

    needs = Needs(breaks=Fact.EXACT_KV)


class Foreign(Plain):
    """A codec for which no kernel exists."""

    layout = "foreign"


class Large(Plain):
    """A codec that counts more bytes than the backend's blocks have."""

    def bytes_per_block(self, spec: object, tokens: int, element: int) -> int:
        return 10**6


class Picky(TopK):
    """A step that relies on what Breaking breaks."""

    needs: ClassVar[Needs] = Needs(requires=Fact.EXACT_KV)


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Breaking", "Foreign", "Large"):
        monkeypatch.setitem(KV_CODECS._entries, name.lower(), f"{HERE}:{name}")
    monkeypatch.setitem(STEPS._loaded, "top_k", Picky)


CONFLICT = "logits_step top_k requires EXACT_KV, which kv_codec breaking breaks"


def test_the_matrix_covers_all_registries() -> None:
    whole = compatibility()
    names = {name for pair in whole for name in pair}
    for registry in (KV_CODECS, STEPS, SCHEMES):
        assert {f"{registry.kind} {name}" for name in registry} <= names
    assert len(whole) == len(names) * (len(names) - 1) // 2
    assert not any(whole.values()), "what exists so far goes together"


def test_the_matrix_shows_a_conflict(breaking: None) -> None:
    found = {pair: sentences for pair, sentences in compatibility().items() if sentences}
    assert found == {("kv_codec breaking", "logits_step top_k"): [CONFLICT]}


def test_all_that_was_chosen_is_asked() -> None:
    chosen = chosen_needs("dense", "plain")
    assert set(chosen) == {"weight_scheme dense", "kv_codec plain", *(f"logits_step {name}" for name in STEPS)}


def test_a_conflict_is_refused_at_start(breaking: None, tiny_model: Path) -> None:
    with pytest.raises(SettingError, match=CONFLICT):
        LLM(str(tiny_model), kv_codec="breaking")


def test_a_codec_without_kernel_or_name_is_refused(breaking: None, tiny_model: Path) -> None:
    with pytest.raises(BackendError, match="kv_codec='foreign' stores keys and values as 'foreign'"):
        LLM(str(tiny_model), kv_codec="foreign")
    with pytest.raises(UnknownNameError, match="kv_codec='plan' cannot work. It must be one of .*plain"):
        LLM(str(tiny_model), kv_codec="plan")


def test_codec_and_backend_must_count_alike(breaking: None, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(KV_CODECS._entries, "large", f"{HERE}:Large")
    with pytest.raises(AssertionError, match=r"\(2000000,\) by large"):
        LLM(str(tiny_model), kv_codec="large")
