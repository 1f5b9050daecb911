"""Base against tuned for a finished run: the evaluation room, with the data and model rooms it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.run_directory import RunDirectory, find_run
from hf_recipes.data.prepare import prepare_data
from hf_recipes.evaluation.run import evaluate_with, load_peft_adapter
from hf_recipes.models.base import load_base
from hf_recipes.models.methods import bottleneck_layer as bottleneck_layer  # PEFT reads that kind once it is imported
from hf_recipes.models.methods.prefix import generate_with_prefix
from hf_recipes.models.source import find_model
from hf_recipes.report.page import write_report

if TYPE_CHECKING:
    from hf_recipes.evaluation.general import TokenisedRow

MAX_GENERAL_TOKENS = 2048


def evaluate_run(
    run: RunDirectory | str | Path | None = None, *, samples: int | None = None, max_new_tokens: int | None = None
) -> dict[str, Any]:
    """Compare base and tuned on the `evaluation` of a run's recipe; writes evaluation.json and the report anew.

    Args:
        run: A run directory; None for the current directory or the newest run.
        samples: Rows of each set, in place of the recipe's.
        max_new_tokens: Limit of an answer, in place of the recipe's.

    Returns:
        The content of evaluation.json; ``["table"]`` holds the rows of the table (see `evaluation.compare.render`).

    Raises:
        UserError: no such run, no result in it, no ``evaluation`` in its recipe, or a file of it is wrong.
    """
    directory = run if isinstance(run, RunDirectory) else find_run(run)
    evaluation = evaluate_with(
        directory,
        tokenise_rows,
        samples=samples,
        max_new_tokens=max_new_tokens,
        load_model=load_model,
        load_adapter=load_adapter,
    )
    write_report(directory)
    return evaluation


def tokenise_rows(path: Path, tokenizer: Any) -> list[TokenisedRow]:
    """Rows of any known format, masked as in training: answers with their end of turn. What is dropped is told."""
    sources = [{"path": str(path)}]
    rows = prepare_data(sources, tokenizer, max_length=MAX_GENERAL_TOKENS, eval_share=0, general_share=0).train
    return [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in rows]


def load_adapter(model: Any, directory: Path) -> Any:
    """An adapter of any method that hf_recipes trains, ready to generate."""
    return generate_with_prefix(load_peft_adapter(model, directory))


def load_model(name_or_path: str, revision: str | None, dtype: str) -> Any:
    """A causal LM from a directory, a GGUF file or the Hub, found as for training."""
    return load_base(find_model(name_or_path, revision), dtype=dtype)
