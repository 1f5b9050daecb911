"""Text classification by a recipe: `accelerate launch -m hf_recipes.classify --config RECIPE [--key value …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hf_recipes.training.entry import run_on_ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on every rank; returns the exit code."""
    trainer = "hf_recipes.training.classification:train_classifier"
    return run_on_ranks(trainer, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
