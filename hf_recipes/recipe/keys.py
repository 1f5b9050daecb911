"""The recipe keys that are ours; all others are those of TRL's `SFTConfig` and `ModelConfig`, with their names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Method = Literal["full", "lora", "dora", "qlora"]

# Kinds of value a key may have besides its annotation's: `HfArgumentParser` knows no unions of three.
MORE_KINDS: dict[str, tuple[str, ...]] = {"clean": ("bool", "list")}


@dataclass
class RecipeArguments:
    """What hf_recipes adds to SFTConfig and ModelConfig; every field is a flat key of the recipe."""

    method: Method = field(
        default="lora",
        metadata={"help": "What is trained: every weight (full), or LoRA, DoRA or LoRA on an NF4 base (qlora)."},
    )
    datasets: list[dict[str, Any]] | None = field(
        default=None,
        metadata={
            "help": "The data: a list of {path, name, split, data_files, columns, role: domain|general, "
            "format: auto|alpaca|sharegpt|messages|prompt_completion|text, weight, eval_share, group_by, stratify_by, "
            "balance_by}."
        },
    )
    general_share: float = field(
        default=0.15,
        metadata={"help": "Share of `role: general` rows in the training set, against forgetting (0 to 0.9)."},
    )
    share_unit: Literal["rows", "tokens", "supervised_tokens"] = field(
        default="rows", metadata={"help": "What general_share is counted in."}
    )
    max_repeats: int = field(
        default=1,
        metadata={"help": "How often a general row may be used where there are too few of them for general_share."},
    )
    eval_share: float = field(
        default=0.1,
        metadata={"help": "Share of every source kept for the eval loss, split off before mixing (0: none)."},
    )
    clean: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "Cleaning rules, all off by default: on, a list of rules, or {html, unicode, control_characters, "
            "…, duplicates: off|exact|near}; see docs/cleaning.md."
        },
    )
    mask_history: bool = field(
        default=False, metadata={"help": "Learn the last assistant turn of each conversation only, not all of them."}
    )
    overlong: Literal["drop", "shorten_prompt", "split"] = field(
        default="drop",
        metadata={
            "help": "A sample whose answer would be cut at max_length: drop it, shorten its prompt from the start, or "
            "split the conversation between turns (plain text anywhere)."
        },
    )
    bad_rows: Literal["drop", "fail"] = field(
        default="drop", metadata={"help": "An unreadable or ill-formed row: drop and count it, or stop."}
    )
    streaming: bool = field(
        default=False,
        metadata={"help": "Read, tokenise and mix the data while training on it; needs max_steps."},
    )
    data_cache_dir: str | None = field(
        default=None,
        metadata={"help": "Where prepared samples are kept; by default in the cache directory of hf_recipes."},
    )
    watch: dict[str, Any] | None = field(
        default=None, metadata={"help": "Thresholds of the watchers; absent ones keep their defaults."}
    )
    verify_checkpoints: Literal["off", "structure", "content", "reload"] = field(
        default="reload", metadata={"help": "How deeply each checkpoint is verified right after it was written."}
    )
    evaluation: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "What `hf-recipes evaluate` compares base and tuned on: {domain, schema, general, "
            "max_new_tokens, samples, batch_size}."
        },
    )
    max_label_share: float = field(
        default=0.99,
        metadata={"help": "Classification: a label that holds more of the training rows than this fails the check."},
    )
    num_processes: int | None = field(
        default=None, metadata={"help": "Number of ranks that must be there; a different world size stops the run."}
    )
