"""`pelton chat`: answers, history, its commands, and Ctrl-C in a terminal."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.running import Terminal, invoke

from pelton import LLM, SamplingParams
from pelton.cli.commands.chat import Chat
from pelton.cli.partner import LocalPartner
from pelton.core.errors import RequestError
from pelton.core.request import CompletionOutput, RequestMetrics, RequestOutput
from pelton.engine.outputs import StreamPiece

GREEDY = ("--temperature", "0", "--max-tokens", "10")
OPENING = "I like the colour green. Tell me about trees."
FOLLOWING = "Which colour do I like?"


@pytest.fixture
def reused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The command takes this model instead of loading one."""
    monkeypatch.setattr("pelton.cli.commands.chat.load", lambda *given: nullcontext(llm))
    return llm


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def reply(llm: LLM, *messages: dict[str, str], max_tokens: int = 10) -> str:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return llm.chat(list(messages), params, use_tqdm=False)[0].outputs[0].text


def test_quick_answers_once(llm: LLM) -> None:
    result = invoke("chat", "--quick", OPENING, *GREEDY)
    assert result.exit_code == 0
    assert result.stdout == reply(llm, user(OPENING)) + "\n"
    assert result.stderr == "(cut after 10 tokens; --max-tokens allows more)\n"


def test_quick_with_a_system_prompt(reused: LLM) -> None:
    system = {"role": "system", "content": "Answer in French."}
    wanted = reply(reused, system, user("Hello"))
    assert invoke("chat", "-q", "Hello", "--system-prompt", "Answer in French.", *GREEDY).stdout == wanted + "\n"
    assert wanted != reply(reused, user("Hello"))


def test_what_was_said_is_in_the_prompt(reused: LLM) -> None:
    first = reply(reused, user(OPENING))
    second = reply(reused, user(OPENING), assistant(first), user(FOLLOWING))
    alone = reply(reused, user(FOLLOWING))
    assert second != alone
    result = invoke("chat", *GREEDY, stdin=f"{OPENING}\n{FOLLOWING}\n/clear\n\n{FOLLOWING}\n")
    assert result.exit_code == 0
    assert result.stdout == f"{first}\n{second}\n{alone}\n"


def test_a_new_system_prompt_starts_afresh(reused: LLM) -> None:
    system = {"role": "system", "content": "Answer in French."}
    wanted = reply(reused, system, user(FOLLOWING))
    result = invoke("chat", *GREEDY, stdin=f"{OPENING}\n/system Answer in French.\n{FOLLOWING}\n/system\n{FOLLOWING}\n")
    assert result.stdout.splitlines()[1:] == [wanted, reply(reused, user(FOLLOWING))]


def test_lines_for_the_program(reused: LLM) -> None:
    result = invoke("chat", stdin="/help\n/nonsense\n /exit now\nnever read\n")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "There is no command /nonsense." in result.stderr and result.stderr.count("/system TEXT") == 2


def test_a_message_that_is_too_long_is_as_if_not_said(monkeypatch: pytest.MonkeyPatch, smollm2: object) -> None:
    with LLM(str(smollm2), max_model_len=64) as small:
        monkeypatch.setattr("pelton.cli.commands.chat.load", lambda *given: nullcontext(small))
        result = invoke("chat", *GREEDY, stdin=f"{'far too long ' * 40}\nHello\n")
        assert result.exit_code == 0
        assert "error: The message has 151 tokens, and the context holds 64, the answer included." in result.stderr
        assert "Shorten it by 88 or more." in result.stderr
        assert result.stdout == reply(small, user("Hello")) + "\n"
        result = invoke("chat", "--quick", "far too long " * 40)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: The message has")


def test_a_line_that_is_no_text(reused: LLM) -> None:
    result = invoke("chat", *GREEDY, stdin=b"caf\xe9\nHello\n")
    assert result.exit_code == 0
    assert result.stderr.startswith("error: That line is not UTF-8 text (byte 3).")
    assert result.stdout == reply(reused, user("Hello")) + "\n"


# ---------------------------------------------------------------------------------------------------
# Ctrl-C: the state it leaves, with a model that says what it is told to


class Scripted:
    """Stands for LLM: each answer is a list of texts, None for Ctrl-C at that place. `prompts`: what it was asked.

    A message has as many tokens as characters.
    """

    def __init__(self, *answers: list[str | None], context: int = 8192) -> None:
        self.report = SimpleNamespace(max_model_len=context)
        self.prompts: list[object] = []
        self.closed = 0
        self._answers = iter(answers)

    def chat_prompt(self, messages: object) -> dict[str, object]:
        assert isinstance(messages, list)
        return {"messages": list(messages), "prompt_token_ids": [1] * sum(len(said["content"]) for said in messages)}

    def stream(self, prompt: dict[str, object], params: SamplingParams) -> Iterator[StreamPiece]:
        self.prompts.append(prompt["messages"])
        return self._pieces(next(self._answers))

    def _pieces(self, texts: list[str | None]) -> Iterator[StreamPiece]:
        try:
            for text in texts:
                if text is None:
                    raise KeyboardInterrupt
                yield StreamPiece(text, (1,))
            whole = CompletionOutput(0, "".join(text or "" for text in texts), finish_reason="stop")
            yield StreamPiece("", (), RequestOutput("0", None, [1], [whole], True, 0, RequestMetrics(0.0)))
        finally:
            self.closed += 1


def scripted(*answers: list[str | None]) -> tuple[Chat, Scripted]:
    llm = Scripted(*answers)
    return Chat(LocalPartner(llm, SamplingParams()), 16), llm  # type: ignore[arg-type]


def test_a_stopped_answer_stays_in_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    talk, llm = scripted(["One", " two", None, " three"], ["Yes."])
    talk.take("Count.")
    assert talk.said == [user("Count."), assistant("One two")]
    talk.take("Go on?")
    assert llm.prompts[1] == [user("Count."), assistant("One two"), user("Go on?")]
    assert llm.closed == 2
    assert capsys.readouterr().out == "One two\nYes.\n"


def test_a_message_without_an_answer_is_taken_out() -> None:
    talk, llm = scripted([None], ["Yes."])
    talk.take("Hello?")
    assert talk.said == []
    talk.take("Hello!")
    assert llm.prompts[1] == [user("Hello!")]


def test_an_error_keeps_what_was_said_before(capsys: pytest.CaptureFixture[str]) -> None:
    talk, llm = scripted(["Yes."])
    talk.take("Hello!")
    before = list(talk.said)

    def refuse(messages: object) -> dict[str, object]:
        raise RequestError("No.", "Say something else.")

    llm.chat_prompt = refuse  # type: ignore[method-assign]
    talk.take("And now?")
    assert talk.said == before
    assert capsys.readouterr().err == "error: No. Say something else.\n"


# ---------------------------------------------------------------------------------------------------
# a full context


def full_chat(llm: Scripted, system: str | None = None) -> Chat:
    return Chat(LocalPartner(llm, SamplingParams(max_tokens=8)), 8, system)  # type: ignore[arg-type]


def test_the_oldest_turns_make_room(capsys: pytest.CaptureFixture[str]) -> None:
    llm = Scripted(["aaaa"], ["bbbb"], ["cccc"], ["dddd"], context=40)
    talk = full_chat(llm, system="S" * 5)
    for text in ("A" * 9, "B" * 9, "C" * 9, "D" * 22):
        talk.take(text)
    system = {"role": "system", "content": "S" * 5}
    assert llm.prompts[1] == [system, user("A" * 9), assistant("aaaa"), user("B" * 9)]
    assert llm.prompts[2] == [system, user("B" * 9), assistant("bbbb"), user("C" * 9)]
    assert llm.prompts[3] == [system, user("D" * 22)]
    assert talk.said == [user("D" * 22), assistant("dddd")]
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "(the context of 40 tokens is full: the oldest message and its answer are forgotten)",
        "(the context of 40 tokens is full: the oldest 2 messages and their answers are forgotten)",
    ]


def test_a_message_that_cannot_fit_forgets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    llm = Scripted(["aaaa"], context=40)
    talk = full_chat(llm, system="S" * 5)
    talk.take("A" * 9)
    before = list(talk.said)
    talk.take("B" * 35)
    assert talk.said == before and len(llm.prompts) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: The message, with the system prompt, has 40 tokens, and the context holds 40")
    assert "Shorten it by 1 or more." in told and "forgotten" not in told
    talk.system = None
    talk.take("B" * 40)
    assert "error: The message has 40 tokens" in capsys.readouterr().err


def test_a_long_conversation_goes_on(monkeypatch: pytest.MonkeyPatch, smollm2: object) -> None:
    with LLM(str(smollm2), max_model_len=96) as small:
        monkeypatch.setattr("pelton.cli.commands.chat.load", lambda *given: nullcontext(small))
        result = invoke("chat", "--temperature", "0", "--ignore-eos", stdin=f"{OPENING}\n" * 3)
        first = reply(small, user(OPENING), max_tokens=96)
    assert result.exit_code == 0 and "error" not in result.stderr
    assert result.stderr.count("(the context of 96 tokens is full)\n") == 3
    assert result.stderr.count("the oldest message and its answer are forgotten") == 2
    assert first in result.stdout


def test_the_default_cap_of_an_answer(reused: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watch(talk: Chat, text: str) -> None:
        seen.append(talk.max_tokens)

    monkeypatch.setattr("pelton.cli.commands.chat.answer_once", watch)
    invoke("chat", "-q", "Hello")
    invoke("chat", "-q", "Hello", "--max-tokens", "7")
    assert seen == [1024, 7]
    assert "1024" in invoke("chat", "--help").stdout


# ---------------------------------------------------------------------------------------------------
# words that are no model


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("Why is the sky blue?",), 1, "Unknown model 'Why is the sky blue?'."),
        (("Hello",), 1, "Unknown model 'Hello'."),
        (("Is 3/4 more than 2/3?",), 1, "there is no such file or folder."),
        (("Why", "is", "it"), 2, "'is' comes after it."),
    ],
)
def test_a_message_in_the_place_of_the_model(words: tuple[str, ...], code: int, told: str) -> None:
    result = invoke("chat", *words)
    assert result.exit_code == code
    assert told in result.stderr and "pelton chat --quick TEXT" in result.stderr


def test_a_path_gets_no_hint_of_messages() -> None:
    for place in ("no/such.gguf", "https://huggingface.co/a/b", "hf.co/a/b:Q4_0", "a/b@main", "a/b/c"):
        result = invoke("chat", place)
        assert result.exit_code == 1 and "--quick" not in result.stderr
    assert "MODEL is empty." in invoke("chat", "").stderr


def test_a_model_without_a_template_says_so_before_it_is_loaded(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*given: object, **settings: object) -> LLM:
        raise AssertionError("the weights are read")

    file = tmp_path / "base.gguf"
    file.write_bytes(smollm2.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.that_template", 1))
    monkeypatch.setattr("pelton.cli.loading.LLM", loads)
    result = invoke("chat", str(file), "--quick", "Hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: base.gguf has no chat template: it was made to continue texts, or its template got lost. "
        "Let it continue a text by pelton complete, or give a template by --chat-template FILE.\n"
    )
    template = tmp_path / "template"
    template.write_text("{{ messages[0].content }}")
    result = invoke("chat", str(file), "--quick", "Hi", "--chat-template", str(template))
    assert isinstance(result.exception, AssertionError)


def test_templates_name_their_flag(tmp_path: Path) -> None:
    file = tmp_path / "template"
    file.write_text("{% if %}")
    result = invoke("chat", "--chat-template", str(file), stdin="")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: --chat-template {file}: The chat template does not compile")
    assert result.stderr.count("--chat-template") == 1
    file.write_text(" \n")
    assert f"error: --chat-template {file} is empty." in invoke("chat", "--chat-template", str(file), stdin="").stderr


# ---------------------------------------------------------------------------------------------------
# Ctrl-C, as it is


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "--temperature", "0", "--ignore-eos", "--max-tokens", "4000", "--stats")
    chat.wait_for(r"/help tells more\.")
    chat.wait_for(r"> ")
    chat.send("Tell me about trees.\n")
    chat.wait_for(r"\w+ \w+ \w+ \w+ \w+ \w+ ")
    chat.interrupt()
    chat.wait_for(r"tokens; stopped")
    chat.wait_for(r"> ")
    chat.send("/exit\n")
    assert chat.end() == 0
    assert "Traceback" not in chat.seen


def test_ctrl_c_at_the_prompt(terminal: Callable[..., Terminal]) -> None:
    """Once says how to leave, and typing goes on; twice leaves."""
    chat = terminal("chat", *GREEDY)
    chat.wait_for(r"> ")
    chat.interrupt()
    chat.wait_for(r"\(Ctrl-C again or Ctrl-D leaves\)")
    chat.wait_for(r"> ")
    chat.send("/nonsense\n")
    chat.wait_for(r"There is no command /nonsense")
    chat.wait_for(r"\n> ")
    chat.interrupt()
    chat.wait_for(r"\(Ctrl-C again or Ctrl-D leaves\)")
    chat.wait_for(r"> ")
    chat.interrupt()
    assert chat.end() == 0


def test_ctrl_d_leaves(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat")
    chat.wait_for(r"> ")
    chat.send("\x04")
    assert chat.end() == 0
    assert "Traceback" not in chat.seen


def test_what_is_typed_during_an_answer_is_read_after_it(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "--temperature", "0", "--ignore-eos", "--max-tokens", "60")
    chat.wait_for(r"> ")
    chat.send("Tell me about trees.\n")
    chat.wait_for(r"\w+ \w+ \w+ ")
    chat.send("/nonsense\n")
    chat.wait_for(r"There is no command /nonsense")
    chat.wait_for(r"\n> ")
    chat.send("Tell me about water.\n")
    chat.wait_for(r"water\.\n\w+ \w+ \w+ ")
    chat.send("\x04")
    assert chat.end() == 0
    assert chat.seen.count("(cut after 60 tokens") == 2
    assert "Traceback" not in chat.seen


def test_ctrl_c_in_a_quick_answer_is_its_end(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "--quick", "Tell me about trees.", "--ignore-eos", "--max-tokens", "4000")
    chat.wait_for(r"\w+ \w+ \w+ ")
    chat.interrupt()
    assert chat.end() == 130
    assert "Traceback" not in chat.seen
