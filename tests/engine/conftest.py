"""An LLM over the fake executable and a tokenizer of bytes; and a tiny random checkpoint with that tokenizer."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.engine.fakes import EOS, VOCAB, FakeExecutable, byte_tokenizer, make_engine

from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.config import EngineConfig
from pelton.core.params import SamplingParams
from pelton.engine.build import Parts
from pelton.engine.llm import LLM
from pelton.engine.prompts import PromptLimits, RequestMaker
from pelton.engine.session import Session
from pelton.kv.pool import BlockPool

TEMPLATE = (
    "{% for m in messages %}<start>{{ m.role }}:{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class FakeLLM:
    """An LLM with a look inside."""

    llm: LLM
    executable: FakeExecutable
    pool: BlockPool
    session: Session


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 1,024 tokens' context, in the public layout, with tokenizer, defaults and template."""
    pytest.importorskip("transformers")
    from tests.oracle.tiny import save, tiny_llama

    folder = save(tiny_llama(vocab_size=272, max_position_embeddings=1024), tmp_path_factory.mktemp("tiny"))
    byte_tokenizer()._inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<end>"}))
    generation = {"temperature": 0.5, "top_k": 7, "eos_token_id": [EOS, 257], "do_sample": True, "max_new_tokens": 9}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.fixture
def fake_llm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeLLM]:
    """Makes a FakeLLM; settings are those of make_engine."""

    def make(**sizes: int) -> FakeLLM:
        engine, executable, pool = make_engine(**sizes)
        tokenizer = byte_tokenizer()
        session = Session(engine, tokenizer)
        checkpoint = SimpleNamespace(chat_template=TEMPLATE, special_tokens=SpecialTokens())

        def build(config: EngineConfig) -> Parts:
            limits = PromptLimits(VOCAB, engine.max_len, frozenset({EOS}))
            opened = ExitStack()
            opened.callback(executable.close)
            return Parts(
                session=session,
                requests=RequestMaker(tokenizer, limits, engine.clock, config.seed),
                tokenizer=tokenizer,
                default_params=SamplingParams(max_tokens=3),
                report=None,  # type: ignore[arg-type]
                checkpoint=checkpoint,  # type: ignore[arg-type]
                executable=executable,
                config=config,
                opened=opened,
            )

        monkeypatch.setattr("pelton.engine.llm.build", build)
        return FakeLLM(LLM("fake", seed=7), executable, pool, session)

    return make
