"""`pelton chat`: a conversation in the terminal. All that was said goes into every prompt, by the chat template.

Invariant: the history holds only what was said: a message without an answer is taken out again.
"""

import contextlib
import os
import select
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.fetch.sources import find_source
from pelton.cli.loading import check_sampling, load, sampling, server, server_settings
from pelton.cli.options import (
    answering_options,
    choose_model,
    debug_option,
    explain,
    looks_like_model,
    max_tokens_option,
    model_options,
    sampling_options,
    server_options,
)
from pelton.cli.partner import LocalPartner, Partner, RemotePartner, ServerError
from pelton.cli.terminal import INTERRUPTED, check_text, decode_text, emit, need_stdin, say
from pelton.core.errors import CheckpointError, RequestError

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  gives input() line editing and its history

PROMPT = "> "
MAX_TOKENS = 1024
ROOM = 4  # of the context at least this part (1/4) is kept free for an answer, unless --max-tokens asks for less
QUICK = "For an answer to one message write: pelton chat --quick TEXT"
HELP = """\
/clear         forget what was said
/system TEXT   set the system prompt (without TEXT: remove it), and forget what was said
/exit          leave; Ctrl-D does too
Ctrl-C         stops an answer; at the prompt, twice leaves"""


@click.command("chat", context_settings={"allow_extra_args": True})
@model_options
@click.option("--system-prompt", help="What the model is told before everything else.")
@click.option("--quick", "-q", metavar="TEXT", help="Answer this one message and leave.")
@max_tokens_option(MAX_TOKENS, "Most tokens of one answer; an answer that is cut says so.")
@sampling_options
@click.option("--stats", is_flag=True, help="Tell speed and sizes after each answer.")
@server_options
@answering_options
@debug_option
def chat(
    model: str | None, model_flag: str | None, system_prompt: str | None, quick: str | None, **flags: object
) -> None:
    """Talk to MODEL.

    Lines that start with / are for the program: /help lists them. Ctrl-C stops an answer and keeps the chat, Ctrl-D
    leaves. Tokens are drawn as the model recommends, where no flag says otherwise; if neither says anything, with
    temperature 0.7 and top-p 0.95.
    """
    if more := click.get_current_context().args:
        raise click.UsageError(f"One MODEL is taken, and {more[0]!r} comes after it. {QUICK}")
    reference, url = choose_model(model, model_flag), flags["url"]
    if model is not None and quick is None and url is None and not looks_like_model(model):
        _refuse_message(model)
    if quick is None:
        need_stdin()
    check_sampling(flags)
    most = int(str(flags["max_tokens"]))
    with ExitStack() as opened:
        partner: Partner
        if url is not None:
            settings = {key: value for key, value in server_settings(flags).items() if key != "logprobs"}
            remote = opened.enter_context(server(flags, reference if model or model_flag else None))
            partner = RemotePartner(remote, settings)
        else:
            llm = opened.enter_context(load(reference, flags, _expect_template))
            partner = LocalPartner(llm, sampling(llm, flags).params)
        talk = Chat(partner, most, system_prompt, stats=bool(flags["stats"]))
        if quick is None:
            talk.run()
        else:
            answer_once(talk, quick)


def _expect_template(path: Path, settings: Mapping[str, object]) -> None:
    """CheckpointError for a model that has no chat template, where the settings give none either."""
    if settings.get("chat_template"):
        return
    checkpoint = open_checkpoint(path)
    try:
        known = bool(checkpoint.chat_template)
    finally:
        checkpoint.close()
    if not known:
        raise CheckpointError(
            f"{path.name} has no chat template: it was made to continue texts, or its template got lost.",
            "Let it continue a text by pelton complete, or give a template by --chat-template FILE.",
        )


def _refuse_message(model: str) -> None:
    """CheckpointError that tells about --quick, but not of an address or a path; none if it names a model after all."""
    try:
        find_source(model)
    except CheckpointError as error:
        is_place = "/" in model and len(model.split()) == 1
        raise CheckpointError(error.cause, error.remedy if is_place else f"{error.remedy} {QUICK}") from error


@dataclass(slots=True)
class Chat:
    """A conversation: what was said, and how to go on."""

    partner: Partner
    max_tokens: int
    system: str | None = None
    stats: bool = False
    said: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Reads lines until Ctrl-D, /exit or Ctrl-C twice."""
        if sys.stdin.isatty():
            say(f"{Path(self.partner.name).name}. Ctrl-C stops an answer, Ctrl-D leaves, /help tells more.")
        interrupted = False
        while True:
            try:
                line = read_line()
            except EOFError:
                if sys.stdin.isatty():
                    say("")
                return
            except KeyboardInterrupt:
                if interrupted:
                    say("")
                    return
                interrupted = True
                say("\n(Ctrl-C again or Ctrl-D leaves)")
                continue
            except (RequestError, UnicodeDecodeError) as error:
                say(f"error: {explain(error) if isinstance(error, RequestError) else error}")
                continue
            interrupted = False
            if line.split()[:1] == ["/exit"]:
                return
            self.take(line)

    def take(self, line: str) -> None:
        """One line: a command, a message, or nothing."""
        command, _, rest = line.strip().partition(" ")
        if not command:
            return
        if not command.startswith("/"):
            self.answer(line)
            return
        match command:
            case "/clear":
                self.said.clear()
                say("(forgotten)")
            case "/system":
                self.system = rest.strip() or None
                self.said.clear()
                say("(system prompt set; forgotten what was said)" if self.system else "(no system prompt; forgotten)")
            case "/help":
                say(HELP)
            case _:
                say(f"There is no command {command}.\n{HELP}")

    def answer(self, text: str) -> None:
        """Prints the answer and keeps both; an error is told, and the message is as if not said."""
        before = list(self.said)
        try:
            self.reply(text)
        except (RequestError, ServerError) as error:
            say(f"error: {explain(error)}")
            self.said = before
        except KeyboardInterrupt:  # before the first piece
            say("")
            self.said = before

    def reply(self, text: str) -> bool:
        """The answer to a message; both go into the history. Whether it was stopped by Ctrl-C."""
        check_text(text, "The message")
        self.said.append({"role": "user", "content": text})
        context = self.partner.context
        if context is not None:
            self.make_room(context)
        printed = self.partner.answer(self._whole(0))
        if not printed.text.endswith("\n"):
            emit("\n")
        cut = printed.cut(context)
        if cut:
            say(cut, dim=True)
        if self.stats:
            say(printed.stats())
        if printed.error:
            raise RequestError(printed.error)
        if printed.text:
            self.said.append({"role": "assistant", "content": printed.text})
        else:
            self.said.pop()
        return printed.stopped

    def make_room(self, context: int) -> None:
        """Forgets the oldest messages and their answers where a context of that many tokens would leave too little room
        for the next answer; says how many. RequestError if the last message alone does not fit.
        """
        room = min(self.max_tokens, context // ROOM)
        last = len(self.said) - 1
        size = self._size(0)
        starts = [place for place, said in enumerate(self.said) if said["role"] == "user"]
        dropped = 0
        while size + room > context and starts[dropped] < last:
            dropped += 1
            size = self._size(starts[dropped])
        if size >= context:
            whole = "The message, with the system prompt," if self.system else "The message"
            raise RequestError(
                f"{whole} has {size} tokens, and the context holds {context}, the answer included.",
                f"Shorten it by {size - context + 1} or more.",
                param="prompt",
            )
        if dropped:
            del self.said[: starts[dropped]]
            forgotten = "message and its answer are" if dropped == 1 else f"{dropped} messages and their answers are"
            say(f"(the context of {context} tokens is full: the oldest {forgotten} forgotten)", dim=True)

    def _size(self, start: int) -> int:
        return self.partner.size(self._whole(start)) or 0

    def _whole(self, start: int) -> list[dict[str, str]]:
        """What was said from `start` on, behind the system prompt."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.said[start:]]


def read_line() -> str:
    """A line from the user; EOFError after the last. The prompt never gets into a redirected stdout."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        line = typed_ahead()
        return input(PROMPT) if line is None else line
    if sys.stdin.isatty():
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
    raw = need_stdin().readline()
    if not raw:
        raise EOFError
    return decode_text(raw, "That line")


def typed_ahead() -> str | None:
    """A line that was typed while an answer came, shown again; None if there is none. EOFError for Ctrl-D.

    Line editing would not see that Ctrl-D. The terminal gives a line at a time, so nothing behind it is taken.
    """
    if not select.select([sys.stdin], [], [], 0)[0]:
        return None
    raw = os.read(sys.stdin.fileno(), 1 << 16)
    if not raw:
        raise EOFError
    line = decode_text(raw, "That line")
    emit(f"{PROMPT}{line}\n")
    return line


def answer_once(talk: Chat, text: str) -> None:
    """The whole of --quick; errors are the command's."""
    if talk.reply(text):
        raise click.exceptions.Exit(INTERRUPTED)
