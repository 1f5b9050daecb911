"""Faults of the rows: told before the first step, and whatever the loss did after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from hf_recipes.training.overfit.cause import Cause
from hf_recipes.training.overfit.evidence import Evidence

_PADDING_SHARE = 0.95
_ALIGNED = 0.9
_SHIFT_GAIN_NATS = 1.0
_UNSHIFT = "let labels stand beside their tokens: the loss itself shifts them by one"
_CONTRADICTED_ROWS, _CONTRADICTED_NATS = 0.3, 0.2
_TEMPLATE_NATS = 15.0
# Answers belong to their prompts where they are likelier after them, by Student's t or in four rows of five. Shuffled
# apart, they look so by chance one time in fourteen of eight rows, in twenty of many. Fewer or shorter answers, or a
# base that knows the language no better than halfway from a guess, tell nothing.
_BELONGS_Z, _BELONGS_WINS = -1.7, 0.8
_ANSWER_TOKENS, _ANSWER_ROWS, _GUESS_SHARE = 8, 8, 0.5


def _has_labels(evidence: Evidence) -> bool:
    return evidence.data.untrained_rows < evidence.data.rows


def _nothing_supervised(evidence: Evidence) -> Iterator[Cause]:
    data = evidence.data
    if data.rows == 0:
        yield Cause("data", "there are no training rows", "check datasets: and data.json")
    elif data.untrained_rows == data.rows:
        yield Cause(
            "data",
            f"none of {data.rows} rows has a trained token (all labels are −100)",
            "check assistant_only_loss, mask_history and max_length, and look with `hf-recipes inspect`",
        )


def _padding(evidence: Evidence) -> Iterator[Cause]:
    share = evidence.data.commonest_share
    if share > _PADDING_SHARE:
        yield Cause(
            "data",
            f"{share:.0%} of the input tokens are one and the same token: rows are padding",
            "look at the rows with `hf-recipes inspect`, and at what fills their columns",
        )


def _misaligned(evidence: Evidence) -> Iterator[Cause]:
    before, there, after = evidence.data.aligned
    if not _has_labels(evidence) or evidence.data.commonest_share > _PADDING_SHARE:
        return
    if there >= _ALIGNED:
        yield from _misaligned_by_loss(evidence)
    elif max(before, after) >= _ALIGNED:
        where = "before" if before > after else "after"
        yield Cause(
            "data",
            f"labels are shifted: {max(before, after):.0%} of them are the token one place {where} theirs, {there:.0%} "
            "the token at their place",
            _UNSHIFT,
        )
    else:
        yield Cause(
            "data",
            f"labels do not follow the inputs: {there:.0%} of them are the token at their place",
            "make labels a copy of input_ids, −100 where nothing is learned",
        )


def _misaligned_by_loss(evidence: Evidence) -> Iterator[Cause]:
    if evidence.shift_losses and (best := min(evidence.shift_losses)) < evidence.shift_losses[1] - _SHIFT_GAIN_NATS:
        yield Cause(
            "data",
            f"labels are shifted: the base gives a loss of {best:.2f} where they are moved by one place, "
            f"{evidence.shift_losses[1]:.2f} as they are",
            _UNSHIFT,
        )


def _contradictions(evidence: Evidence) -> Iterator[Cause]:
    data = evidence.data
    if data.floor >= _CONTRADICTED_NATS and data.contradicted >= _CONTRADICTED_ROWS:
        yield Cause(
            "data",
            f"{data.contradicted:.0%} of the rows have a prompt that stands before another answer too: no training "
            f"gets below {data.floor:.2f} nats a token",
            "keep one answer for each prompt (clean: {duplicates: exact} drops whole copies), or put what decides "
            "between them into the prompt",
        )


def _template(evidence: Evidence) -> Iterator[Cause]:
    if broken := evidence.data.broken_markers:
        yield Cause(
            "data",
            f"the template is another model's: {', '.join(broken[:4])} stand in the rows as plain text, the vocabulary "
            "has no such tokens",
            "use the base's own chat template: give the turns as messages, not as rendered text, and leave out "
            "chat_template_path",
        )
    elif evidence.template and evidence.template.used > evidence.template.own + _TEMPLATE_NATS:
        yield Cause(
            "data",
            "the template is not the one this base was trained with: a short conversation costs "
            f"{evidence.template.used:.0f} nats in it, {evidence.template.own:.0f} in the base's own",
            "leave out chat_template_path",
        )


def knows_below(vocabulary: int) -> float:
    """The loss, in nats a token, below which a base counts as one that knows the language."""
    return _GUESS_SHARE * math.log(max(2, vocabulary))


def _shuffled(evidence: Evidence) -> Iterator[Cause]:
    facts = evidence.answers
    if facts is None or facts.rows < _ANSWER_ROWS or evidence.data.answer_tokens < _ANSWER_TOKENS:
        return
    if min(facts.own, facts.prompts) > knows_below(evidence.vocabulary):
        return  # a base that does not know the language cannot tell
    if facts.z > _BELONGS_Z and facts.wins < _BELONGS_WINS:
        yield Cause(
            "data",
            f"answers do not belong to their prompts: after prompts of other rows the base finds them as likely "
            f"({facts.others:.2f} nats a token) as after their own ({facts.own:.2f}), which are the better ones in "
            f"{facts.wins:.0%} of the rows",
            "check that the columns of question and answer come from the same row (a column was sorted or shuffled "
            "apart), with `hf-recipes inspect`",
        )


DATA_RULES: tuple[Callable[[Evidence], Iterator[Cause]], ...] = (
    _nothing_supervised,
    _padding,
    _misaligned,
    _contradictions,
    _template,
)
DATA_SUSPICIONS = (_shuffled,)
