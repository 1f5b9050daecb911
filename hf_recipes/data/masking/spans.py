"""Which characters of a rendered conversation the assistant says: one look where that is certain, else by probing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hf_recipes.core.log import logger
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.control_tokens import strings_in
from hf_recipes.data.masking.fast_spans import Frame, Span, framed_spans, learn_frame
from hf_recipes.data.masking.probed_spans import LongWay, after_closing
from hf_recipes.data.masking.rendering import Rendered, Tools
from hf_recipes.data.masking.templates import ChatTemplate
from hf_recipes.data.reading.turns import Message

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
    """Finds the assistant's turns in what a template renders. Can be pickled, with what it has found out.

    Args:
        template: the chat template; it is tried on `TRIALS` before the short way (`fast_spans`) is used at all.
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
                spans = self._short_way(messages, tools, result) if self.is_regular else None
                found.append((result.text, self.long_way(messages, tools, result) if spans is None else spans))
            except BadRow as fault:
                found.append(fault)
        return found

    def long_way(self, messages: list[Message], tools: Tools, rendered: Rendered) -> list[Span]:
        """The ranges by markers and probing (`probed_spans`); raises `BadRow` where one is not found."""
        return LongWay(self.template, self._frame, messages, tools, rendered).spans()

    @cached_property
    def is_regular(self) -> bool:
        """Whether the short way can be used: wherever it finds anything in `TRIALS`, the long way finds the same."""
        regular = self._frame.head != "" and all(self._agree(trial) for trial in TRIALS)
        if not regular:
            logger.debug("The chat template is irregular: every answer is located by probing, which is slower.")
        return regular

    @cached_property
    def _frame(self) -> Frame:
        return learn_frame(self.template)

    def _agree(self, trial: Sequence[str]) -> bool:
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
            short = self._short_way(messages, None, rendered)
            return short is None or short == self.long_way(messages, None, rendered)
        except BadRow:
            return False

    def _short_way(self, messages: list[Message], tools: Tools, rendered: Rendered) -> list[Span] | None:
        """The ranges by one look at the text, or None where that is not certain; markers, if any, must confirm them."""
        answers = [message for message in messages if message["role"] == "assistant"]
        if any(answer.get("tool_calls") for answer in answers):
            return None
        said = strings_in([[value for key, value in message.items() if key != "role"] for message in messages])
        texts = [*said, *strings_in(tools)]
        spans = framed_spans(self._frame, rendered.text, [answer["content"] for answer in answers], texts)
        if spans is None or not self.template.has_markers:
            return spans
        if len(rendered.marked) != len(spans):
            return None
        for (start, end), (marked_start, marked_end) in zip(spans, rendered.marked, strict=True):
            if marked_start not in (start, start - len(self._frame.head)):
                return None
            if after_closing(self.template, rendered.text, start, marked_end) != end:
                return None
        return spans
