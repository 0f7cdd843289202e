"""Front: what a door to an engine needs without any weights: tokenizer, templates, defaults of sampling.

It computes nothing and reads no weights, so it is built while another process loads them. Invariant: once built it
depends on no open file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.checkpoint.tokenizer_files import open_tokenizer_files
from pelton.core.clock import Clock
from pelton.core.config import EngineConfig
from pelton.core.errors import RequestError, SettingError
from pelton.core.params import SamplingParams
from pelton.engine.prompts import PromptLimits, RequestMaker
from pelton.sampling.effective import Defaults, defaults_of, effective, overrides_of
from pelton.sampling.recommended import recommendation_notes
from pelton.schedule import ORDERS
from pelton.tokenize.chat_template import ChatTemplate, build_chat_template
from pelton.tokenize.tokenizer import Tokenizer, build_tokenizer
from pelton.tokenize.vocabulary import check_vocabulary

NO_TEMPLATE = "no_chat_template"
KEPT_TEMPLATES = 16  # requests may bring their own, in any number


@dataclass(frozen=True, slots=True)
class Front:
    """One model's text side. `defaults`: of sampling, each with its origin; `default_params`: of a call that says none.

    `notes`: sentences for the user. `chat_template`: the checkpoint's own, `templates` those compiled so far.
    """

    tokenizer: Tokenizer
    defaults: Defaults
    default_params: SamplingParams
    special_tokens: SpecialTokens
    config: EngineConfig
    notes: tuple[str, ...] = ()
    chat_template: str | None = None
    templates: dict[str | None, ChatTemplate] = field(default_factory=dict)

    def template(self, source: str | None = None) -> ChatTemplate:
        """The chat template: `source` if given, else the settings', else the checkpoint's; RequestError without any."""
        chosen = source or self.config.model.chat_template or self.chat_template
        if not chosen:
            raise RequestError(
                f"{Path(self.config.model.model).name} has no chat template, so messages make no prompt for it.",
                "Send it a text to continue (/v1/completions, LLM.generate, pelton complete), "
                "or start with a chat template.",
                param="messages",
                code=NO_TEMPLATE,
            )
        compiled = self.templates.get(chosen)
        if compiled is None:
            if len(self.templates) >= KEPT_TEMPLATES:
                self.templates.clear()
            compiled = self.templates[chosen] = build_chat_template(chosen, self.special_tokens)
        return compiled

    def fit(self, limits: PromptLimits) -> tuple[str, ...]:
        """Holds the tokenizer against the model as loaded: what does not fit but does no harm, as sentences.

        CheckpointError where no prompt can run.
        """
        return check_vocabulary(self.tokenizer, self.special_tokens, limits.vocab)

    def maker(self, limits: PromptLimits, clock: Clock) -> RequestMaker:
        """Makes Requests for an engine of these limits, whose clock this is."""
        policy = self.config.schedule.scheduling_policy
        heeding = () if _heeds_priority(policy) else tuple(name for name in ORDERS if _heeds_priority(name))
        fim = self.special_tokens.fim
        return RequestMaker(
            self.tokenizer,
            limits,
            clock,
            self.config.seed,
            priority_needs=heeding,
            no_sessions=self.config.cache.no_sessions,
            fim=fim,
        )


def build_front(config: EngineConfig, checkpoint: Checkpoint | None = None) -> Front:
    """The Front of the settings' model; `checkpoint`: that model where it is open already (it stays so).

    Raises CheckpointError for files that make none, SettingError for a chat_template or an
    override_generation_config that cannot work.
    """
    overrides = overrides_of(config.model.override_generation_config)
    if checkpoint is not None:
        return _front(config, checkpoint, overrides)
    opened = open_checkpoint(config.model.model, config.fetch, progress=True)
    try:
        return _front(config, opened, overrides)
    finally:
        opened.close()


def _heeds_priority(policy: str) -> bool:
    return ORDERS.get(policy).heeds_priority


def _front(config: EngineConfig, checkpoint: Checkpoint, overrides: Mapping[str, object] | None) -> Front:
    recommended = config.model.generation_config == "auto"
    defaults = defaults_of(checkpoint.generation_config, overrides, recommended)
    return Front(
        tokenizer=_tokenizer(checkpoint, config),
        defaults=defaults,
        default_params=effective({}, defaults).params,
        special_tokens=checkpoint.special_tokens,
        config=config,
        notes=recommendation_notes(checkpoint.generation_config) if recommended else (),
        chat_template=checkpoint.chat_template,
        templates=_templates(config.model.chat_template, checkpoint.special_tokens),
    )


def _templates(source: str | None, tokens: SpecialTokens) -> dict[str | None, ChatTemplate]:
    """The settings' chat template, compiled, if there is one. The checkpoint's waits: who completes text needs none."""
    if not source:
        return {}
    try:
        return {source: build_chat_template(source, tokens)}
    except RequestError as error:
        raise SettingError(f"chat_template cannot work: {error.cause}", error.remedy) from error


def _tokenizer(checkpoint: Checkpoint, config: EngineConfig) -> Tokenizer:
    """The checkpoint's own, or that of another one, by its reference; `revision` is of the model alone."""
    if config.model.tokenizer is None:
        return build_tokenizer(checkpoint)
    source = open_tokenizer_files(config.model.tokenizer, replace(config.fetch, revision=None), progress=True)
    try:
        return build_tokenizer(source)
    finally:
        source.close()
