"""`pelton chat`: a conversation in the terminal. All that was said goes into every prompt, by the chat template.

Invariant: the history holds only what was said: a message without an answer is taken out again.
"""

import contextlib
import sys
from dataclasses import dataclass, field
from pathlib import Path

import click

from pelton.cli.answer import print_answer
from pelton.cli.loading import check_sampling, load, sampling_params
from pelton.cli.options import choose_model, debug_option, engine_options, model_options, sampling_options
from pelton.cli.terminal import INTERRUPTED, decode_text, emit, say
from pelton.core.errors import BackendError, RequestError
from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  gives input() line editing and its history

PROMPT = "> "
HELP = """\
/clear         forget what was said
/system TEXT   set the system prompt (without TEXT: remove it), and forget what was said
/exit          leave; Ctrl-D does too
Ctrl-C         stops an answer; at the prompt, twice leaves"""


@click.command("chat")
@model_options
@click.option("--system-prompt", help="What the model is told before everything else.")
@click.option("--quick", "-q", metavar="TEXT", help="Answer this one message and leave.")
@click.option("--max-tokens", type=click.INT, help="Most tokens of one answer [what the context has room for].")
@sampling_options
@click.option("--stats", is_flag=True, help="Tell speed and sizes after each answer.")
@engine_options
@debug_option
def chat(
    model: str | None, model_flag: str | None, system_prompt: str | None, quick: str | None, **flags: object
) -> None:
    """Talk to MODEL.

    Lines that start with / are for the program: /help lists them. Ctrl-C stops an answer and keeps the chat, Ctrl-D
    leaves. Tokens are drawn as the model recommends, where no flag says otherwise; if neither says anything, with
    temperature 0.7 and top-p 0.95.
    """
    reference = choose_model(model, model_flag)
    check_sampling(flags)
    with load(reference, flags) as llm:
        params = sampling_params(llm.get_default_sampling_params(), flags)
        talk = Chat(llm, params, system_prompt, stats=bool(flags["stats"]))
        if quick is None:
            talk.run()
        else:
            answer_once(talk, quick)


@dataclass(slots=True)
class Chat:
    """A conversation: what was said, and how to go on."""

    llm: LLM
    params: SamplingParams
    system: str | None = None
    stats: bool = False
    said: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Reads lines until Ctrl-D, /exit or Ctrl-C twice."""
        if sys.stdin.isatty():
            say(f"{Path(self.llm.report.model).name}. Ctrl-C stops an answer, Ctrl-D leaves, /help tells more.")
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
                say(f"error: {error}")
                continue
            interrupted = False
            if line.strip() == "/exit":
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
        before = len(self.said)
        self.said.append({"role": "user", "content": text})
        try:
            self.reply()
        except RequestError as error:
            say(f"error: {error}")
            if before:
                say("(/clear forgets what was said)")
            del self.said[before:]
        except KeyboardInterrupt:  # before the first piece
            say("")
            del self.said[before:]

    def reply(self) -> bool:
        """The answer to what was said last; whether it was stopped by Ctrl-C."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        printed = print_answer(self.llm, self.llm.chat_prompt([*system, *self.said]), self.params)
        if not printed.text.endswith("\n"):
            emit("\n")
        if self.stats:
            say(printed.stats())
        if printed.error:
            raise RequestError(printed.error)
        if printed.text:
            self.said.append({"role": "assistant", "content": printed.text})
        else:
            self.said.pop()
        return printed.stopped


def read_line() -> str:
    """A line from the user; EOFError after the last. The prompt never gets into a redirected stdout."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input(PROMPT)
    if sys.stdin.isatty():
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
    raw = sys.stdin.buffer.readline()
    if not raw:
        raise EOFError
    return decode_text(raw, "That line")


def answer_once(talk: Chat, text: str) -> None:
    """The whole of --quick; errors are the command's."""
    talk.said.append({"role": "user", "content": text})
    try:
        stopped = talk.reply()
    except RequestError as error:
        raise BackendError(error.cause, error.remedy) from error
    if stopped:
        raise click.exceptions.Exit(INTERRUPTED)
