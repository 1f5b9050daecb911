"""A chat template taken apart into what stands around each role's text, where it is that simple, and proven to be.

Ollama renders prompts by Go templates and never runs the Jinja template inside a GGUF: on `ollama create` it looks for
the nearest of its own templates (edit distance below 100, ``template/template.go``), which drops what a training's
template says beyond it, such as a default system message; with no near one a prompt goes to the model bare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Message = dict[str, str]
Render = Callable[[Sequence[Message], bool], str]

_CONVERSATIONS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "What is 2 + 2?"),),
    (("user", "one\ntwo"), ("assistant", '{"a": [1, 2]}'), ("user", "and?")),
    (("system", "Be brief."), ("user", "Hello {{ name }}")),
    (
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hi."),
        ("user", "Bye"),
        ("assistant", "Bye."),
        ("user", "?"),
    ),
)


@dataclass(frozen=True)
class ChatPieces:
    """What a template puts before and after each role's text.

    `start` comes first where there is no system message (a default one, say); `system` is None where the template has
    no such role; `answer` is what the assistant's turn begins with.
    """

    start: str
    system: tuple[str, str] | None
    user: tuple[str, str]
    assistant: tuple[str, str]
    answer: str

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt for the assistant's next turn, as the Go template makes it."""
        around = {"system": self.system or ("", ""), "user": self.user, "assistant": self.assistant}
        has_system = any(message["role"] == "system" for message in messages)
        turns = (around[m["role"]][0] + m["content"] + around[m["role"]][1] for m in messages)
        return ("" if has_system else self.start) + "".join(turns) + self.answer


def take_apart(render: Render, skipped_start: str = "") -> ChatPieces | None:
    """The pieces of a template, or None where it is no plain row of turns (or treats a turn by its place).

    Args:
        render: ``(messages, whether to end where the assistant begins) -> text``.
        skipped_start: left out at the beginning: the token that the runtime itself puts before a prompt.
    """
    try:
        pieces = _pieces(lambda messages, ask: render(messages, ask).removeprefix(skipped_start))
    except ValueError:
        return None
    for turns in _CONVERSATIONS:
        messages = [{"role": role, "content": text} for role, text in turns]
        if pieces.system is None and messages[0]["role"] == "system":
            continue
        if render(messages, True).removeprefix(skipped_start) != pieces.render(messages):
            return None
    return pieces


def _pieces(render: Render) -> ChatPieces:
    """From the differences of conversations that go on. Raises ValueError where one is no beginning of the next."""
    turns = [("user", "@U@"), ("assistant", "@A@"), ("user", "@V@")]
    talk = [{"role": role, "content": text} for role, text in turns]
    first, second, third = (render(talk[:count], False) for count in (1, 2, 3))
    assistant = _split(_rest(second, first), "@A@")
    user = _split(_rest(third, second), "@V@")
    start = _before(first, user[0] + "@U@" + user[1])
    answer = _rest(render(talk[:1], True), first)
    return ChatPieces(start, _system(render, user), user, assistant, answer)


def _system(render: Render, user: tuple[str, str]) -> tuple[str, str] | None:
    messages = [{"role": "system", "content": "@S@"}, {"role": "user", "content": "@U@"}]
    try:
        text = render(messages, False)
    except Exception:  # a template says by raising, each in its own way, that it has no system role
        return None
    return _split(_before(text, user[0] + "@U@" + user[1]), "@S@")


def _rest(longer: str, shorter: str) -> str:
    if not longer.startswith(shorter):
        raise ValueError("a turn changes what stands before it")
    return longer[len(shorter) :]


def _before(text: str, end: str) -> str:
    if not text.endswith(end):
        raise ValueError("a turn depends on its place")
    return text[: len(text) - len(end)]


def _split(text: str, mark: str) -> tuple[str, str]:
    before, found, after = text.partition(mark)
    if not found or mark in after:
        raise ValueError("a turn's text does not stand in it once")
    return before, after
