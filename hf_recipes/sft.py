"""Supervised fine-tuning by a recipe: `accelerate launch -m hf_recipes.sft --config RECIPE [--key value …]`.

`hf-recipes sft` starts this module with checks before it and an exit code after it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hf_recipes.training.entry import run_on_ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on every rank; returns the exit code."""
    return run_on_ranks("hf_recipes.training.run:train", sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
