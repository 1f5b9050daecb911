"""The short way to what the assistant says: one look at the rendered text, for templates that are regular enough.

Most templates write the same `Frame` around every answer. Where the text holds exactly as many heads as there are
answers, none of them comes out of somebody's words, and each is followed by its answer and the closing, then the
answers are there and nowhere else. Anything less gives None, and `hf_recipes.data.masking.spans` takes the long way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.templates import PROBE, QUESTION, ChatTemplate

Span = tuple[int, int]
ASKED = "hfRecipesQuestion"


@dataclass(frozen=True)
class Frame:
    """What a template writes around an answer.

    `head` is what the model is given last; empty where that cannot be told. `leads` may stand between it and the answer
    and are learned (nothing, an empty ``<think>`` block, a space). `closing` ends with the end-of-turn token. `opening`
    is what the model is given after the head although a plain answer is shown without it (DeepSeek-R1's ``<think>``):
    an answer that begins with it begins behind it, which is for the long way to see.
    """

    head: str
    leads: tuple[str, ...]
    closing: str
    opening: str = ""


def learn_frame(template: ChatTemplate) -> Frame:
    """The frame that a plain exchange shows; one with an empty head where it shows none."""
    asked = {**QUESTION, "content": ASKED}
    try:
        before = template.render([asked, {"role": "assistant", "content": PROBE}]).partition(PROBE)[0]
        question = template.render([asked])
        prompt = template.render([asked], add_generation_prompt=True)
    except BadRow:
        return Frame("", ("",), template.closing)
    if template.has_generation_prompt:
        given = prompt if before.startswith(prompt) else before
        head = given[_divergence(template, question, given) :]
        leads = tuple(dict.fromkeys(["", before[len(given) :]]))
        opening = prompt.removeprefix(before) if prompt.startswith(before) else ""
    else:
        lead = before[len(question) :] if before.startswith(question) else ""
        lead = "" if lead.strip() else lead  # white space, which the model has to write (Llama-2, Mistral)
        head = before.removesuffix(lead).rpartition(ASKED)[2]
        leads, opening = (lead,), ""
    return Frame(head if head.strip() else "", leads, template.closing, opening)


def _divergence(template: ChatTemplate, question: str, given: str) -> int:
    """Where `given` goes on otherwise than `question`, moved back to the beginning of a token it lies in."""
    same = len(os.path.commonprefix([question, given]))  # noqa: RUF071 (by character is what is wanted)
    return next((start for start, end in template.tokens_in(given) if start < same < end), same)


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
        if start < len(head) or end is None or (frame.opening and text.startswith(frame.opening, start)):
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
