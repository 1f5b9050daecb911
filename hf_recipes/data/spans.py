"""Which characters of a rendered conversation the assistant says: from markers in the template, else by probing it.

Nothing is searched for by what a template is believed to look like. For each assistant turn the beginning is where the
rendering of the turns before it, with the generation prompt, ends: exactly what the model is given when it is to
answer. The end is found by putting a probe in place of the answer and comparing what follows it. Templates that rewrite
earlier turns (dropping their reasoning, moving the system text) are handled by the probe, which leaves everything else
of the conversation in place. A turn that cannot be found this way is a `BadRow`, never a guess.
"""

from __future__ import annotations

from typing import Any

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.templates import PROBE, ChatTemplate
from hf_recipes.data.turns import Message

Span = tuple[int, int]
Tools = list[dict[str, Any]] | None


def render_with_spans(
    template: ChatTemplate, messages: list[Message], tools: Tools, trained: list[bool]
) -> tuple[str, list[Span]]:
    """Render a conversation once and find what of it is to be learned.

    Returns:
        The text, and the character ranges of the trained assistant turns, each with its end-of-turn token and without
        white space after it.

    Raises:
        BadRow: the template refuses the row, alters an answer, or a turn cannot be located.
    """
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if template.has_markers:
        text, marked = template.render_marked(messages, tools)
        if len(marked) == len(turns):
            starts = [
                max(start, _start_by_prompt(template, messages, tools, text, index) or 0)
                for index, (start, _) in zip(turns, marked, strict=True)
            ]
            spans = [
                (start, _after_closing(template, text, start, end))
                for start, (_, end) in zip(starts, marked, strict=True)
            ]
        else:
            spans = [_locate(template, messages, tools, text, index) for index in turns]
    else:
        text = template.render(messages, tools)
        spans = [_locate(template, messages, tools, text, index) for index in turns]
    for index, (start, end) in zip(turns, spans, strict=True):
        _check_shown(messages[index], text[start:end])
    return text, [span for index, span in zip(turns, spans, strict=True) if trained[index]]


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
    if start is None:
        start = _before_space(template, messages, tools, text, index, probed_start)
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


def _before_space(
    template: ChatTemplate, messages: list[Message], tools: Tools, text: str, index: int, start: int | None
) -> int | None:
    """Where a template has no generation prompt, the model is given the turns before, and writes the space that the
    template puts before an answer (Llama-2, Mistral): move `start` in front of it."""
    if template.has_generation_prompt or index == 0 or start is None:
        return start
    try:
        prompt = template.render(messages[:index], tools)
    except BadRow:
        return start
    is_space = text.startswith(prompt) and not text[len(prompt) : start].strip()
    return min(start, len(prompt)) if is_space else start


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
