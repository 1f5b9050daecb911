"""Do the tokens say what the rows say? Rows of every source, encoded, decoded and compared with their own text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.check import open_source
from hf_recipes.data.ledger import BadRow, Ledger
from hf_recipes.data.masking.masks import Encoded, Encoder
from hf_recipes.data.reading.formats import Example, to_example
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import as_specs, unique_labels

ROWS_PER_SOURCE = 64
EXAMPLES = 3
_SHOWN = 120


@dataclass
class RoundTrip:
    """What came of the rows of one source.

    `failed` rows lost or gained text; `altered` answers differ from the row only as the template or the tokenizer
    writes them (trimmed, reasoning left out, Unicode normalised); `unknown` rows hold text for which the tokenizer
    has no token; `leading_space` answers begin with white space in the data itself. `answers` counts all answers to
    be learned; `examples` shows the first failures.
    """

    source: str
    rows: int = 0
    answers: int = 0
    failed: int = 0
    altered: int = 0
    unknown: int = 0
    leading_space: int = 0
    examples: list[dict[str, str]] = field(default_factory=list)

    def fail(self, row_id: str, what: str, expected: str, found: str) -> None:
        """Count a failed row and keep the first few."""
        self.failed += 1
        if len(self.examples) < EXAMPLES:
            expected, found = _around_difference(expected, found)
            self.examples.append({"row_id": row_id, "what": what, "expected": expected, "found": found})


def first_examples(
    datasets: Sequence[SourceSpec | Mapping[str, Any]], rows: int = ROWS_PER_SOURCE
) -> Iterator[tuple[str, list[tuple[str, Example]]]]:
    """Each source's label and its first usable `rows` as (row id, example)."""
    specs = as_specs(datasets)
    for spec, label in zip(specs, unique_labels(specs), strict=True):
        yield label, list(islice(_usable(spec, label), rows))


def _usable(spec: SourceSpec, label: str) -> Iterator[tuple[str, Example]]:
    format_name, rows = open_source(spec, Ledger(label))
    for place, row in rows:
        try:
            yield str(place), to_example(row, format_name)
        except BadRow:  # counted where the data is prepared
            continue


def round_trip(source: str, examples: Sequence[tuple[str, Example]], encoder: Encoder) -> RoundTrip:
    """Encode `examples`, decode the tokens and compare them with what was to be said.

    For a conversation the tokens must decode to the template's rendering, and each learned stretch to the assistant's
    text with the end of its turn. A plain text must be found in its decoded tokens.
    """
    result = RoundTrip(source)
    encoded = encoder.encode([example for _, example in examples])
    unknown = encoder.tokenizer.unk_token_id
    for (row_id, example), tokens in zip(examples, encoded, strict=True):
        if isinstance(tokens, BadRow):  # counted where the data is prepared
            continue
        result.rows += 1
        if unknown is not None and unknown in tokens.input_ids:
            result.unknown += 1
        elif example.text is not None:
            _check_text(result, row_id, example.text, _decode(encoder, tokens.input_ids))
        else:
            _check_conversation(result, row_id, example, tokens, encoder)
    return result


def _check_text(result: RoundTrip, row_id: str, text: str, decoded: str) -> None:
    if text in decoded:
        return
    if _normal(text) in _normal(decoded):
        result.altered += 1
    else:
        result.fail(row_id, "the tokens do not decode to the row's text", text, decoded)


def _check_conversation(result: RoundTrip, row_id: str, example: Example, encoded: Encoded, encoder: Encoder) -> None:
    messages, tools, trained = encoder.template.fit(example)
    rendered, decoded = encoder.template.render(messages, tools), _decode(encoder, encoded.input_ids)
    if _normal(rendered) != _normal(decoded):
        result.fail(row_id, "the tokens do not decode to the template's rendering", rendered, decoded)
        return
    if not encoder.assistant_only_loss:
        return
    answers = [
        "" if message.get("tool_calls") else str(message["content"])
        for message, learned in zip(messages, encoder.learned_turns(trained), strict=True)
        if learned and message["role"] == "assistant"
    ]
    stretches = _learned_texts(encoded, encoder)
    if len(stretches) != len(answers):  # neighbouring turns make one stretch
        answers, stretches = ["".join(answers)], ["".join(stretches)]
    for answer, stretch in zip(answers, stretches, strict=True):
        _check_answer(result, row_id, answer, stretch, encoder.template.end_of_turn.text)


def _check_answer(result: RoundTrip, row_id: str, answer: str, stretch: str, end: str) -> None:
    result.answers += 1
    result.leading_space += answer[:1].isspace()
    said = stretch.rstrip().removesuffix(end)
    if said == stretch.rstrip():
        result.fail(row_id, f"an answer is learned without its end {end!r}", answer + end, stretch)
    elif said == answer or not answer:  # a function call is written in the template's own way
        return
    elif _is_within(answer, said) or _is_within(said, answer):
        result.altered += 1
    else:
        result.fail(row_id, "what is learned is not what the assistant says", answer + end, stretch)


def _is_within(part: str, whole: str) -> bool:
    return bool(part.strip()) and _normal(part) in _normal(whole)


def _normal(text: str) -> str:
    """Text without differences that tokenizers make on purpose: Unicode forms, and spaces at joints."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _decode(encoder: Encoder, ids: Iterable[int]) -> str:
    text: str = encoder.tokenizer.decode(
        [int(token) for token in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def _learned_texts(encoded: Encoded, encoder: Encoder) -> list[str]:
    runs = groupby(encoded.labels, key=lambda label: label != IGNORED_LABEL)
    return [_decode(encoder, list(labels)) for learned, labels in runs if learned]


def _around_difference(expected: str, found: str) -> tuple[str, str]:
    """Both texts from a little before their first difference on, short enough to show."""
    same = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), 0)
    start = max(0, same - 30)
    return expected[start : start + _SHOWN], found[start : start + _SHOWN]
