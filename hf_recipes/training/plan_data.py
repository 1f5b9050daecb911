"""How many rows of which length a recipe trains on: from its data where they are at hand, else from `max_length`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.flops import Work, causal_pairs
from hf_recipes.core.log import logger
from hf_recipes.recipe.resolve import Recipe

if TYPE_CHECKING:
    import numpy as np

DEFAULT_LENGTH = 1024  # of SFTConfig
# Without data nothing is known of answers and prompts; memory and time are then those of the worst case.
_ALL_SUPERVISED = 1.0


@dataclass(frozen=True)
class DataFacts:
    """What is trained on in one epoch.

    Attributes:
        rows: after packing, where the recipe packs; 0 where their number is not known.
        longest: tokens of the longest row.
        work: tokens, supervised tokens and pairs of positions of an epoch.
        source: where the figures are from, in words.
        eval_work: of one evaluation.
        lengths: of the rows, where they are padded to each other; None where that is not known or rows are packed.
    """

    rows: int
    longest: int
    work: Work
    source: str
    eval_work: Work = field(default_factory=lambda: Work(0, 0, 0))
    lengths: np.ndarray | None = None

    @property
    def supervised_share(self) -> float:
        """Labelled tokens among all."""
        return self.work.supervised / self.work.tokens if self.work.tokens else _ALL_SUPERVISED

    def padding_share(self, micro_batch: int, global_batch: int, seed: int) -> float:
        """Of the positions computed in an epoch in random order, those that are padding."""
        if self.lengths is None:
            return 0.0
        from hf_recipes.data.batching.collate import padding_share, shuffled_order

        order = shuffled_order(self.lengths, global_batch, seed, 0)
        return float(padding_share(self.lengths[order], micro_batch))


def supervised_share(report: Mapping[str, Any]) -> float:
    """Labelled tokens among all of a training set, by its data.json; all of them where it does not say."""
    train = report.get("train") or {}
    tokens = train.get("tokens") or 0
    return train.get("supervised_tokens", tokens) / tokens if tokens else _ALL_SUPERVISED


def data_facts(recipe: Recipe, tokens: int | None = None) -> DataFacts:
    """The recipe's data, tokenised as training will (and kept in the same cache), or what can be said without them.

    Args:
        recipe: may have no data.
        tokens: of an epoch, given by the user in place of data.

    Raises:
        UserError: the data are there and wrong.
    """
    if tokens is not None:
        return full_rows(recipe, tokens, f"{tokens:,} tokens, as given")
    if not recipe.get("datasets"):
        return full_rows(recipe, 0, "no data were given")
    if recipe.get("streaming"):
        return full_rows(recipe, 0, "a stream, whose rows are not known")
    from hf_recipes.data.reading.sources import as_specs, find_files

    remote = [spec.label for spec in as_specs(recipe.values["datasets"]) if find_files(spec) is None]
    if remote:
        return full_rows(recipe, 0, f"{remote[0]} is not on this machine")
    return _of_prepared(recipe)


def full_rows(recipe: Recipe, tokens: int, source: str) -> DataFacts:
    """Rows that are all as long as may be: an upper bound on memory."""
    length = int(recipe.get("max_length", DEFAULT_LENGTH))
    rows = -(-tokens // length)
    work = Work(tokens, tokens, rows * causal_pairs([length]))
    return DataFacts(rows, length, work, f"rows of max_length ({source})")


def _of_prepared(recipe: Recipe) -> DataFacts:
    from hf_recipes.data.prepare import prepare_data
    from hf_recipes.data.settings import data_settings
    from hf_recipes.models.tokenizer import load_recipe_tokenizer

    try:
        tokenizer = load_recipe_tokenizer(recipe.values)
    except UserError as error:
        if "okenizer" not in str(error) and "Hub" not in str(error):
            raise
        logger.warning("The data cannot be tokenised here (%s)", error)
        return full_rows(recipe, 0, "its tokenizer is not on this machine")
    data = prepare_data(recipe.values["datasets"], tokenizer, **data_settings(recipe.values))
    facts = facts_of(data.train, recipe, "the recipe's data, tokenised")
    return facts if data.eval is None else replace(facts, eval_work=_work(data.eval))


def facts_of(dataset: Any, recipe: Recipe, source: str) -> DataFacts:
    """The figures of a prepared training set.

    Args:
        dataset: with ``input_ids``, ``labels`` and ``length``.
        recipe: says whether its rows will be packed.
        source: where the data are from, in words.
    """
    from hf_recipes.data.batching.packing import pack, sample_lengths

    lengths = sample_lengths(dataset)
    if not recipe.get("packing"):
        return DataFacts(len(lengths), int(lengths.max()), _work(dataset), source, lengths=lengths)
    longest = int(recipe.get("max_length", DEFAULT_LENGTH))
    rows = len(pack(lengths, longest, int(recipe.get("seed", 42))))
    return DataFacts(rows, longest, _work(dataset), source)


def _work(dataset: Any) -> Work:
    from hf_recipes.data.batching.packing import sample_lengths

    lengths = sample_lengths(dataset).astype("int64")
    return Work(int(lengths.sum()), _supervised(dataset), int((lengths * (lengths + 1) // 2).sum()))


def _supervised(dataset: Any) -> int:
    import pyarrow.compute as pc

    from hf_recipes.core.labels import IGNORED_LABEL

    total = 0
    for batch in dataset.with_format("arrow").select_columns(["labels"]).iter(batch_size=10_000):
        labels = pc.list_flatten(batch["labels"])
        total += pc.sum(pc.not_equal(labels, IGNORED_LABEL)).as_py() or 0
    return total
