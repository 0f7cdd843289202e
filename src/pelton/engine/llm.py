"""LLM: the engine as an object in Python, with vLLM's names and shapes. It adds no behaviour to the engine's.

Invariant: whatever ends a call (an error, Ctrl-C, a closed generator), its requests are out of the engine afterwards.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import TracebackType

import msgspec
from tqdm import tqdm

from pelton.core.config import resolve
from pelton.core.params import SamplingParams
from pelton.core.request import Request, RequestOutput
from pelton.engine.build import build
from pelton.engine.outputs import StreamPiece
from pelton.engine.prompts import (
    Conversation,
    Prompt,
    Prompts,
    SessionIds,
    at_place,
    check_conversation,
    check_template,
    conversations,
    on_terms,
)
from pelton.engine.report import StartReport
from pelton.engine.session import Session
from pelton.engine.texts.names import named, well_formed
from pelton.sampling.effective import Effective, effective
from pelton.tokenize.tokenizer import Tokenizer


class LLM:
    """A model ready to generate; `model` is a folder, a .gguf file or a name, settings are those of `core/config.py`.

    Several threads may call it at once; their requests share the steps. In a forked process it raises BackendError.
    `close()` (or leaving a `with` block) lets its memory go.
    """

    def __init__(self, model: str, **settings: object) -> None:
        self._parts = build(resolve(model, settings))

    @property
    def report(self) -> StartReport:
        """What was loaded and how long it took."""
        return self._parts.report

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer in use."""
        return self._parts.front.tokenizer

    def get_metrics(self) -> dict[str, float]:
        """Figures by name: totals since the start such as generated_tokens, preemptions and finished_stop, and those of
        EngineStats, such as kv_usage and prefix_hits_total, after the last step.
        """
        engine = self._parts.session.engine
        return {**msgspec.structs.asdict(engine.stats), **engine.counters.snapshot()}

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own recommendation (generation_config) over the defaults; used where a call gives none."""
        return self._parts.front.default_params

    def explain_sampling(self, params: SamplingParams | Mapping[str, object] | None = None) -> Effective:
        """The values that take effect and where each comes from: "request", "generation_config", "flag" or "default".

        Of None (a call that gives no params), of a server's body with these fields, or of SamplingParams, which stand
        for themselves: nothing of the model's is added to them. RequestError for values that cannot be.
        """
        if isinstance(params, SamplingParams):
            own = {field.name: getattr(params, field.name) for field in fields(SamplingParams)}
            general = SamplingParams()
            return Effective(
                params,
                {name: "default" if value == getattr(general, name) else "request" for name, value in own.items()},
            )
        return effective(params or {}, self._parts.front.defaults)

    def reset_prefix_cache(self) -> bool:
        """Forgets all that is kept of former prompts and answers, but for what running requests use; True once it is
        done.
        """
        self._parts.session.reset_prefix_cache()
        return True

    def end_session(self, session_id: str, cache_salt: str = "") -> bool:
        """Lets go of what is held for a session; False where nothing is. RequestError for what is no name."""
        return self._parts.session.end_session((well_formed("cache_salt", cache_salt), named("session_id", session_id)))

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: int | list[int] | tuple[int, ...] = 0,
        cache_salt: str = "",
        session_id: SessionIds = None,
        user: str | None = None,
        timeout: float | None = None,
    ) -> list[RequestOutput]:
        """Answers to one or many prompts (text, {"prompt": text} or {"prompt_token_ids": ids}), in their order.

        A prompt with "suffix" has what stands between the two as its answer, if the model was trained to fill in.
        `priority`: one for all or one for each; smaller is more urgent. Other than 0 it needs a scheduling_policy that
        looks at it. Only requests of the same `cache_salt` share the beginnings of their prompts. `session_id`, one for
        all or one for each: what is computed is held for the next request of that session. `user`: whose they are, for
        scheduling_policy "fair". `timeout`: seconds after which those that are not over end with an error. All prompts
        are checked before any runs: RequestError names the place of the first bad one. A request that fails later has
        finish_reason "error" and its error; the others are not affected.
        """
        self._parts.session.refuse_fork()
        params = self._parts.front.default_params if sampling_params is None else sampling_params
        requests = self._parts.requests.make_all(
            prompts,
            params,
            priority=priority,
            cache_salt=cache_salt,
            session_id=session_id,
            user=user,
            timeout=timeout,
        )
        return _run(self._parts.session, requests, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
        session_id: SessionIds = None,
    ) -> list[RequestOutput]:
        """As generate, for one conversation (a list of {"role": ..., "content": ...}) or several."""
        listed = conversations(messages)
        prompts: list[Prompt] = []
        for place, conversation in enumerate(listed):
            with at_place("messages", place, len(listed)):
                prompt = self.chat_prompt(
                    conversation,
                    chat_template=chat_template,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    chat_template_kwargs=chat_template_kwargs,
                )
            prompts.append(prompt)
        return self.generate(prompts, sampling_params, use_tqdm, session_id=session_id)

    def chat_prompt(
        self,
        messages: Conversation,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        """A conversation as a prompt for generate and stream: its text by the chat template, and the text's ids.

        RequestError for what is no conversation, or what the template or the model cannot take.
        """
        self._parts.session.refuse_fork()
        check_conversation(messages)
        check_template(chat_template, chat_template_kwargs)
        text = self._parts.front.template(chat_template).render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **(chat_template_kwargs or {}),  # type: ignore[arg-type]
        )
        return {
            "prompt": text,
            "prompt_token_ids": list(self._parts.requests.encode(text, bos=False, param="messages")),
        }

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        session_id: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[StreamPiece]:
        """The answers to one prompt as they arrive, a piece of the one at `index` each; the last has the whole output.

        Closing the iterator aborts them. A bad prompt raises RequestError here, not at the first piece. The rest is as
        for generate.
        """
        self._parts.session.refuse_fork()
        params = self._parts.front.default_params if sampling_params is None else sampling_params
        request = self._parts.requests.make(
            prompt, params, priority=priority, cache_salt=cache_salt, session_id=session_id
        )
        return _pieces(self._parts.session, on_terms(request, user, timeout))

    def close(self) -> None:
        """Ends all requests and lets weights and KV memory go; closing twice is no error."""
        self._parts.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def work_done(llm: LLM) -> dict[str, int]:
    """What the open model's backend has computed and read since the start; see Executable.counters."""
    return llm._parts.inner.executable.counters()


def end_tokens(llm: LLM) -> frozenset[int]:
    """The ids by which the open model ends an answer."""
    return llm._parts.inner.limits.end_ids


def _pieces(session: Session, request: Request) -> Iterator[StreamPiece]:
    """The request's pieces; it joins at the first one, and is out of the engine once the iterator is closed."""
    try:
        (answer,) = session.start([request])
        while True:
            pieces = session.next_pieces(answer)
            yield from pieces
            if pieces[-1].finished:
                return
    finally:
        session.drop([request.request_id])


def _run(session: Session, requests: list[Request], use_tqdm: bool) -> list[RequestOutput]:
    """Their answers, with a bar if that is wanted; whatever ends it, they are out of the engine."""
    bar = tqdm(total=len(requests), desc="Processed prompts", unit="prompt", disable=not (use_tqdm and requests))
    try:
        answers = left = session.start(requests)
        while left:
            before, left = len(left), session.unfinished(left)
            bar.update(before - len(left))
        return [answer.output() for answer in answers]
    finally:
        bar.close()
        session.drop(request.request_id for request in requests)
