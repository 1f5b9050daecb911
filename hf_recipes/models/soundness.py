"""Whether model and tokenizer fit each other and the run, told right after loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.log import logger

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_QUESTION, _ANSWER = "hfRecipesQuestion", "hfRecipesAnswer"


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Stop when the tokenizer knows tokens the embedding has no row for (an index error deep inside, otherwise).

    Raises:
        UserError: with both numbers.
    """
    rows, last = _embedding_rows(model), max(tokenizer.get_vocab().values())
    if last >= rows:
        raise UserError(
            f"The tokenizer has {len(tokenizer)} tokens, the model's embedding only {rows} rows (the last token's id "
            f"is {last}): use the tokenizer that belongs to the model."
        )


def soundness_notes(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What is worth knowing of a sound pair: vocabulary and rows, tied or not, the pad token, a missing template."""
    tied = "tied" if heads_are_tied(model) else "not tied"
    notes = [
        f"Vocabulary: {len(tokenizer):,} tokens, {_embedding_rows(model):,} embedding rows; "
        f"embedding and output head are {tied}."
    ]
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        notes.append(
            f"Padding with the end token {tokenizer.eos_token!r}: padding is masked by position, real ends are learnt."
        )
    if not tokenizer.chat_template:
        notes.append("The tokenizer has no chat template: only plain text can be trained on.")
    return notes


def soundness_warnings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, longest_row: int | None = None
) -> list[str]:
    """Likely mistakes: a template that loses text, rows longer than the model's positions, weights tied otherwise.

    Args:
        model: The base.
        tokenizer: The one it is trained with.
        longest_row: Longest row of the run, in tokens.
    """
    found = [template_fault(tokenizer), _too_long(model, longest_row), _tied_otherwise(model)]
    return [warning for warning in found if warning is not None]


def tell_soundness(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, longest_row: int | None = None) -> None:
    """Check the vocabulary, and log `soundness_notes` and `soundness_warnings`.

    Raises:
        UserError: the embedding has too few rows.
    """
    check_vocabulary(model, tokenizer)
    for note in soundness_notes(model, tokenizer):
        logger.info("%s", note)
    for warning in soundness_warnings(model, tokenizer, longest_row):
        logger.warning("%s", warning)


def heads_are_tied(model: PreTrainedModel) -> bool:
    """Whether input embedding and output head are one tensor (not merely declared so)."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def template_fault(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """What is wrong with the chat template, shown one question and answer; None where it is sound or absent.

    Conversations in the data are refused by the data room; this is for runs without any, and for scripts of one's own.
    """
    if not tokenizer.chat_template:
        return None
    messages = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception as error:  # templates are programs of their own: any kind of error may come out
        reason = first_line(error)
        return f"The chat template fails on one question and answer ({reason}): conversations cannot be trained on."
    missing = [role for role, part in (("question", _QUESTION), ("answer", _ANSWER)) if part not in text]
    if missing:
        return f"The chat template leaves out the {' and the '.join(missing)} of a conversation: give another one."
    return None


def _too_long(model: PreTrainedModel, longest_row: int | None) -> str | None:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest_row is None or positions is None or longest_row <= positions:
        return None
    return (
        f"Rows of {longest_row} tokens go beyond the {positions} positions the model was trained on: it may fail or "
        "learn little from what lies behind; lower max_length or scale the positions (rope_parameters)."
    )


def _tied_otherwise(model: PreTrainedModel) -> str | None:
    declared = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    if model.get_output_embeddings() is None or declared == heads_are_tied(model):
        return None
    says, are = ("tied", "two tensors") if declared else ("apart", "one tensor")
    return f"config.json says that embedding and output head are {says}, but they are {are}: what is saved may differ."


def _embedding_rows(model: PreTrainedModel) -> int:
    return int(model.get_input_embeddings().num_embeddings)  # the weight itself may be a shard
