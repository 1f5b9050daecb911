"""The long way to what the assistant says: render a conversation several times and compare.

Nothing is searched for by what a template is believed to look like. For each assistant turn the beginning is where the
rendering of the turns before it, with the generation prompt, ends: exactly what the model is given when it is to
answer. The end is found by putting a probe in place of the answer and comparing what follows it. Templates that rewrite
earlier turns (dropping their reasoning, moving the system text) are handled by the probe, which leaves everything else
of the conversation in place. Where the template marks what the assistant says, the markers are taken. A turn that
cannot be found this way is a `BadRow`, never a guess.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.fast_spans import Frame, Span
from hf_recipes.data.masking.rendering import Rendered, Tools
from hf_recipes.data.masking.templates import PROBE, ChatTemplate
from hf_recipes.data.reading.turns import Message


@dataclass
class LongWay:
    """One rendered conversation, with the template that wrote it and what that writes around a plain answer."""

    template: ChatTemplate
    frame: Frame
    messages: list[Message]
    tools: Tools
    rendered: Rendered
    _probed: dict[int, tuple[str, str] | None] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The conversation as text."""
        return self.rendered.text

    def spans(self) -> list[Span]:
        """The ascending ranges of all assistant turns, each with its end-of-turn token; raises `BadRow`."""
        turns = [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]
        if len(self.rendered.marked) == len(turns):
            spans = [self._marked(index, span) for index, span in zip(turns, self.rendered.marked, strict=True)]
        else:
            spans = [self._locate(index) for index in turns]
        for index, (start, end) in zip(turns, spans, strict=True):
            _check_shown(self.messages[index], self.text[start:end])
        return spans

    def _marked(self, index: int, span: Span) -> Span:
        """A range inside markers, without the head of the turn, which some templates put there too."""
        start, end = span
        prompt = self._start_by_prompt(index)
        if prompt is not None:
            start = max(start, prompt)
        elif self.text.startswith(self.frame.head, start):
            start += len(self.frame.head)
        return start, after_closing(self.template, self.text, start, end)

    def _locate(self, index: int) -> Span:
        starts = (self._start_by_prompt, self._start_by_probe, self._start_by_divergence)
        start = next((found for way in starts if (found := way(index)) is not None), None)
        if start is None:
            raise BadRow("an assistant turn cannot be located in what the chat template renders")
        content, calls = self.messages[index]["content"], self.messages[index].get("tool_calls")
        if content and self.text.startswith(content + self.template.closing, start):
            return start, start + len(content) + len(self.template.closing)
        ends = (self._end_by_prefix, self._end_by_probe) if calls else (self._end_by_probe, self._end_by_prefix)
        end = next((found for way in ends if (found := way(index, start)) is not None), None)
        if end is None or start >= end:
            raise BadRow("an assistant turn cannot be located in what the chat template renders")
        return start, end

    def _prompt(self, index: int) -> str | None:
        """What the model would be given to answer turn `index`; None where the template has no way to say so."""
        if not self.template.has_generation_prompt or index == 0:
            return None
        try:
            return self.template.render(self.messages[:index], self.tools, add_generation_prompt=True)
        except BadRow:
            return None

    def _start_by_prompt(self, index: int) -> int | None:
        prompt = self._prompt(index)
        return len(prompt) if prompt is not None and self.text.startswith(prompt) else None

    def _start_by_probe(self, index: int) -> int | None:
        """Where the words of a probe would begin, moved in front of what the model has to write before them."""
        before = (self._probe(index) or (None, ""))[0]
        if before is None:
            return None
        head = self.frame.head if self.template.has_generation_prompt else ""
        leads = sorted((lead for lead in self.frame.leads if index and before.endswith(head + lead)), key=len)
        starts = [len(before) - len(lead) for lead in (*reversed(leads), "")]
        return next((start for start in starts if self.text.startswith(before[:start])), None)

    def _start_by_divergence(self, index: int) -> int | None:
        """Where the text leaves what the model would be given, in the turn that it would be given (Qwen3.5 without
        thinking is given an empty ``<think>`` block, yet shows a full one), moved back to the beginning of a token."""
        prompt = self._prompt(index)
        if prompt is None:
            return None
        same = len(os.path.commonprefix([self.text, prompt]))  # noqa: RUF071 (by character is what is wanted)
        same = next((start for start, end in self.template.tokens_in(prompt) if start < same < end), same)
        try:
            given = self.template.render(self.messages[:index], self.tools)
        except BadRow:
            return None
        return same if len(given) < same else None

    def _probe(self, index: int) -> tuple[str, str] | None:
        """What stands before and after turn `index` when a probe takes its place."""
        if index not in self._probed:
            probe = {"role": "assistant", "content": PROBE}
            probed = [*self.messages[:index], probe, *self.messages[index + 1 :]]
            try:
                before, found, after = self.template.render(probed, self.tools).partition(PROBE)
            except BadRow:
                found = before = after = ""
            self._probed[index] = (before, after) if found and PROBE not in after else None
        return self._probed[index]

    def _end_by_probe(self, index: int, start: int) -> int | None:
        after = (self._probe(index) or ("", None))[1]
        if after is None or not self.text.endswith(after):
            return None
        return after_closing(self.template, self.text, start, len(self.text) - len(after))

    def _end_by_prefix(self, index: int, start: int) -> int | None:
        """End of the last end-of-turn token in the rendering of the turns up to `index`, if the text begins with it."""
        try:
            prefix = self.template.render(self.messages[: index + 1], self.tools)
        except BadRow:
            return None
        if not self.text.startswith(prefix):
            return None
        turn = self.text[start : len(prefix)].rstrip()
        position = turn.rfind(self.template.end_of_turn.text)
        if position >= 0:
            return start + position + len(self.template.end_of_turn.text)
        ending = [match.end() for match in self.template.special_token.finditer(turn)]
        return start + len(turn) if ending and ending[-1] == len(turn) else None


def after_closing(template: ChatTemplate, text: str, start: int, end: int) -> int:
    """Move the end of an answer behind its end-of-turn token, and in front of white space after that.

    Raises:
        BadRow: no such token follows.
    """
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


def _check_shown(message: Message, said: str) -> None:
    """Raise `BadRow` when the answer is not in its range; reasoning before ``</think>`` may be dropped by templates."""
    answer = message["content"].rpartition("</think>")[2].strip()
    if answer not in said:
        raise BadRow("the chat template alters an assistant turn")
