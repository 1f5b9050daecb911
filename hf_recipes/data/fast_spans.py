"""The short way to what the assistant says: one look at the rendered text, for templates that are regular enough.

Most templates write the same `Frame` around every answer. Where the text holds exactly as many heads as there are
answers, none of them comes out of somebody's words, and each is followed by its answer and the closing, then the
answers are there and nowhere else. Anything less gives None, and `hf_recipes.data.spans` takes the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.templates import PROBE, QUESTION, ChatTemplate

Span = tuple[int, int]
ASKED = "hfRecipesQuestion"


@dataclass(frozen=True)
class Frame:
    """What a template writes around an answer.

    `head` is what the model is given last. `leads` may stand between it and the answer and are learned (an empty
    ``<think>`` block, a space). `closing` ends with the end-of-turn token.
    """

    head: str
    leads: tuple[str, ...]
    closing: str


def learn_frame(template: ChatTemplate) -> Frame | None:
    """The frame that a plain exchange shows, or None where the template has none to go by."""
    asked = {**QUESTION, "content": ASKED}
    try:
        before = template.render([asked, {"role": "assistant", "content": PROBE}]).partition(PROBE)[0]
        question = template.render([asked])
        prompt = template.render([asked], add_generation_prompt=True)
    except BadRow:
        return None
    if before.count(ASKED) != 1:
        return None
    if template.has_generation_prompt:
        given = prompt if before.startswith(prompt) else before
        head = given[_divergence(template, question, given) :]
        leads = tuple(dict.fromkeys(["", before[len(given) :]]))
    else:
        head = before.removesuffix(template.answer_space)[before.index(ASKED) + len(ASKED) :]
        leads = (template.answer_space,)
    return Frame(head, leads, template.closing) if head.strip() else None


def _divergence(template: ChatTemplate, question: str, given: str) -> int:
    """Where `given` goes on otherwise than `question`, moved back to the beginning of a token it lies in."""
    same = next(
        (index for index, (one, two) in enumerate(zip(question, given, strict=False)) if one != two),
        min(len(question), len(given)),
    )
    tokens = (match.span() for match in template.special_token.finditer(given))
    return next((start for start, end in tokens if start < same < end), same)


def framed_spans(frame: Frame, text: str, answers: Sequence[str], said: Sequence[str]) -> list[Span] | None:
    """The ranges of the answers with their lead and closing, or None unless they are certain.

    Args:
        frame: what the template writes around answers.
        text: the rendered conversation.
        answers: the assistant's contents in order.
        said: every text that the template was given, the answers too.
    """
    head = frame.head
    if text.count(head) != len(answers) or any(head in words for words in said):
        return None
    spans = []
    start = 0
    for answer in answers:
        start = text.find(head, start) + len(head)
        end = _end_of(frame, text, answer, start)
        if start < len(head) or end is None:
            return None
        spans.append((start, end))
        start = end
    return spans


def _end_of(frame: Frame, text: str, answer: str, start: int) -> int | None:
    for words in (answer, answer.strip()):
        for lead in frame.leads:
            framed = lead + words + frame.closing
            if text.startswith(framed, start):
                return start + len(framed)
    return None
