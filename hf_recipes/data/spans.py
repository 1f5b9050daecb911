"""Which characters of a rendered conversation the assistant says: from markers in the template, else by probing it.

Nothing is searched for by what a template is believed to look like. For each assistant turn the beginning is where the
rendering of the turns before it, with the generation prompt, ends: exactly what the model is given when it is to
answer. The end is found by putting a probe in place of the answer and comparing what follows it. Templates that rewrite
earlier turns (dropping their reasoning, moving the system text) are handled by the probe, which leaves everything else
of the conversation in place. A turn that cannot be found this way is a `BadRow`, never a guess.

This long way renders a conversation several times. `AnswerFinder` takes the short one (`hf_recipes.data.fast_spans`)
for the rows that allow it, once the template has shown that both ways agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from hf_recipes.core.log import logger
from hf_recipes.data.control_tokens import strings_in
from hf_recipes.data.fast_spans import Frame, Span, framed_spans, learn_frame
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.templates import PROBE, ChatTemplate, Rendered
from hf_recipes.data.turns import Message

Tools = list[dict[str, Any]] | None
TRIALS: tuple[tuple[str, ...], ...] = (
    ("user", "One."),
    ("system", "user", "One."),
    ("user", "One.", "user", "Two.", "user", "Three."),
    ("system", "user", "One.", "user", "Two."),
    ("user", "user", "One.", "Two."),
    ("user", "  One.\n", "user", "\n\nTwo.  "),
    ("user", "<think>\nhm\n</think>\n\nOne.", "user", "<think>\nwell\n</think>\n\nTwo."),
    ("user", "One.", "tool", "Two."),
)


class AnswerFinder:
    """Finds the assistant's turns in what a template renders.

    Args:
        template: the chat template; it is tried on a few conversations before the short way is used.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template

    def render(self, conversations: Sequence[tuple[list[Message], Tools]]) -> list[tuple[str, list[Span]] | BadRow]:
        """Render conversations and find every assistant turn, each with its end-of-turn token.

        Returns:
            For each conversation the text and the ascending character ranges of the assistant turns, without white
            space after the end-of-turn token; or the `BadRow` that says why not: the template refuses the row, alters
            an answer, or a turn cannot be located.
        """
        found: list[tuple[str, list[Span]] | BadRow] = []
        rendered = self.template.render_many(conversations)
        for (messages, tools), result in zip(conversations, rendered, strict=True):
            try:
                if isinstance(result, BadRow):
                    raise result
                spans = self._short_way(self.frame, messages, tools, result)
                found.append((result.text, self.long_way(messages, tools, result) if spans is None else spans))
            except BadRow as fault:
                found.append(fault)
        return found

    @cached_property
    def frame(self) -> Frame | None:
        """What the template writes around answers, if both ways agree on every one of `TRIALS`; else None."""
        frame = learn_frame(self.template)
        if frame and not all(self._agree(frame, trial) for trial in TRIALS):
            frame = None
        if frame is None:
            logger.debug("The chat template is irregular: every answer is located by probing, which is slower.")
        return frame

    def _agree(self, frame: Frame, trial: Sequence[str]) -> bool:
        messages = [
            {"role": turn, "content": f"Text {index}"}
            if turn in ("system", "user", "tool")
            else {"role": "assistant", "content": turn}
            for index, turn in enumerate(trial)
        ]
        (rendered,) = self.template.render_many([(messages, None)])
        if isinstance(rendered, BadRow):
            return True
        try:
            short = self._short_way(frame, messages, None, rendered)
            return short is None or short == self.long_way(messages, None, rendered)
        except BadRow:
            return False

    def _short_way(
        self, frame: Frame | None, messages: list[Message], tools: Tools, rendered: Rendered
    ) -> list[Span] | None:
        """The ranges by one look at the text; None where that is not certain. Markers, if any, must confirm them."""
        answers = [message for message in messages if message["role"] == "assistant"]
        if frame is None or any(answer.get("tool_calls") for answer in answers):
            return None
        said = [*strings_in([_without_role(message) for message in messages]), *strings_in(tools)]
        spans = framed_spans(frame, rendered.text, [answer["content"] for answer in answers], said)
        if spans is None or not self.template.has_markers:
            return spans
        if [start for start, _ in rendered.marked] != [start for start, _ in spans]:
            return None
        ends = [_after_closing(self.template, rendered.text, start, end) for start, end in rendered.marked]
        return spans if ends == [end for _, end in spans] else None

    def long_way(self, messages: list[Message], tools: Tools, rendered: Rendered) -> list[Span]:
        """The ranges by markers where each turn has one, else by probing; raises `BadRow` where one is not found."""
        template, text = self.template, rendered.text
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if len(rendered.marked) == len(turns):
            starts = [
                max(start, _start_by_prompt(template, messages, tools, text, index) or 0)
                for index, (start, _) in zip(turns, rendered.marked, strict=True)
            ]
            spans = [
                (start, _after_closing(template, text, start, end))
                for start, (_, end) in zip(starts, rendered.marked, strict=True)
            ]
        else:
            spans = [_locate(template, messages, tools, text, index) for index in turns]
        for index, (start, end) in zip(turns, spans, strict=True):
            _check_shown(messages[index], text[start:end])
        return spans


def _without_role(message: Message) -> list[Any]:
    return [value for key, value in message.items() if key != "role"]


def _check_shown(message: Message, said: str) -> None:
    """Raise `BadRow` when the answer is not in its range; reasoning before ``</think>`` may be dropped by templates."""
    answer = message["content"].rpartition("</think>")[2].strip()
    if answer not in said:
        raise BadRow("the chat template alters an assistant turn")


def _locate(template: ChatTemplate, messages: list[Message], tools: Tools, text: str, index: int) -> Span:
    content = messages[index]["content"]
    start = _start_by_prompt(template, messages, tools, text, index)
    if start is not None and content and text.startswith(content + template.closing, start):
        return start, start + len(content) + len(template.closing)
    probed_start, probed_end = _probe(template, messages, tools, text, index)
    if start is None and probed_start is not None:
        start = _before_space(template, text, probed_start) if index else probed_start
    end = None
    if messages[index].get("tool_calls"):
        end = _end_by_prefix(template, messages, tools, text, index, start or 0)
    if end is None and probed_end is not None:
        end = _after_closing(template, text, start or 0, probed_end)
    if end is None:
        end = _end_by_prefix(template, messages, tools, text, index, start or 0)
    if start is None or end is None or start >= end:
        raise BadRow("an assistant turn cannot be located in what the chat template renders")
    return start, end


def _start_by_prompt(
    template: ChatTemplate, messages: list[Message], tools: Tools, text: str, index: int
) -> int | None:
    """End of what the model would be given to answer turn `index`, when the text does begin with that."""
    if not template.has_generation_prompt or index == 0:
        return None
    try:
        prompt = template.render(messages[:index], tools, add_generation_prompt=True)
    except BadRow:
        return None
    return len(prompt) if text.startswith(prompt) else None


def _before_space(template: ChatTemplate, text: str, start: int) -> int:
    """Where a template has no generation prompt, the model is given the turns before, and writes the space that the
    template puts before an answer (Llama-2, Mistral): move `start` in front of it."""
    return start - len(template.answer_space) if text.endswith(template.answer_space, 0, start) else start


def _probe(
    template: ChatTemplate, messages: list[Message], tools: Tools, text: str, index: int
) -> tuple[int | None, int | None]:
    """Where the answer of turn `index` begins and ends, by what stays the same when a probe stands in its place."""
    probed = [*messages[:index], {"role": "assistant", "content": PROBE}, *messages[index + 1 :]]
    try:
        before, found, after = template.render(probed, tools).partition(PROBE)
    except BadRow:
        return None, None
    if not found or PROBE in after:
        return None, None
    start = len(before) if text.startswith(before) else None
    end = len(text) - len(after) if text.endswith(after) else None
    return start, end


def _end_by_prefix(
    template: ChatTemplate, messages: list[Message], tools: Tools, text: str, index: int, start: int
) -> int | None:
    """End of the last end-of-turn token in the rendering of the turns up to `index`, when the text begins with it."""
    try:
        prefix = template.render(messages[: index + 1], tools)
    except BadRow:
        return None
    if not text.startswith(prefix):
        return None
    turn = text[start : len(prefix)].rstrip()
    position = turn.rfind(template.end_of_turn.text)
    if position >= 0:
        return start + position + len(template.end_of_turn.text)
    ending = [match.end() for match in template.special_token.finditer(turn)]
    return start + len(turn) if ending and ending[-1] == len(turn) else None


def _after_closing(template: ChatTemplate, text: str, start: int, end: int) -> int:
    """Move the end of an answer behind its end-of-turn token, and in front of white space after that."""
    if text.startswith(template.closing, end):
        return end + len(template.closing)
    said = text[start:end].rstrip()
    inside = [match.end() for match in template.special_token.finditer(said)]
    if inside and inside[-1] == len(said):
        return start + len(said)
    following = template.special_token.search(text, end)
    if following is None or text[end : following.start()].strip():
        raise BadRow("an assistant turn has no end token in what the chat template renders")
    return following.end()
