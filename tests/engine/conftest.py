"""An LLM over the fake executable and a tokenizer of bytes; and a tiny random checkpoint with that tokenizer."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engine.fakes import EOS, VOCAB, FakeExecutable, byte_tokenizer, held, make_engine

from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.config import EngineConfig
from pelton.engine.build import EngineParts, Parts
from pelton.engine.front import Front
from pelton.engine.llm import LLM
from pelton.engine.prompts import PromptLimits
from pelton.engine.session import Session
from pelton.kv.pool import BlockPool
from pelton.sampling.effective import Defaults, effective

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

    @property
    def held(self) -> int:
        """KV blocks that requests use."""
        return held(self.session.engine)


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

    def make(**sizes: Any) -> FakeLLM:
        engine, executable, pool = make_engine(**sizes)
        tokenizer = byte_tokenizer()
        session = Session(engine, tokenizer)

        def build(config: EngineConfig) -> Parts:
            limits = PromptLimits(VOCAB, engine.scheduler.max_len, frozenset({EOS}))
            opened = ExitStack()
            opened.callback(executable.close)
            defaults = Defaults({"max_tokens": 3}, {"max_tokens": "generation_config"})
            params, tokens = effective({}, defaults).params, SpecialTokens()
            front = Front(tokenizer, defaults, params, tokens, config, chat_template=TEMPLATE)
            report: Any = None
            inner = EngineParts(engine, executable, report, limits, config, opened)
            return Parts(session, front.maker(limits, engine.clock), front, report, inner)

        monkeypatch.setattr("pelton.engine.llm.build", build)
        return FakeLLM(LLM("fake", seed=7), executable, pool, session)

    return make
