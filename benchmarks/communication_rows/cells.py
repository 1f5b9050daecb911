"""The runs that are counted: a strategy on so many ranks, and what differs between runs of it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

SIZES = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
MICRO, STEPS, LORA_R = 2, 3, 16
# What holds a large model's layers apart, in this one's proportions: DeepSpeed keeps what is below its limits gathered,
# and a model this small would never be let go. Norms stay below the threshold, as they do in a large model.
_AS_IF_LARGE = {
    "stage3_max_live_parameters": 1,
    "stage3_max_reuse_distance": 0,
    "stage3_param_persistence_threshold": 1000,
    "stage3_prefetch_bucket_size": 180_000,
}


@dataclass(frozen=True)
class Cell:
    """One run. `keys` are the recipe's, `zero` goes into DeepSpeed's `zero_optimization`."""

    strategy: str
    ranks: int = 2
    method: str = "full"
    passes: int = 1
    dtype: str = "fp32"
    checkpointing: bool = False
    sizes: dict[str, int] = field(default_factory=dict)  # tensor, context, pipeline
    keys: dict[str, Any] = field(default_factory=dict)
    zero: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its directory and its row."""
        words = [self.strategy, f"{self.ranks} ranks", self.method, f"{self.passes} passes", self.dtype]
        words += ["checkpointing"] if self.checkpointing else []
        words += [f"{name}={value}" for part in (self.sizes, self.keys, self.zero) for name, value in part.items()]
        return " ".join(words)


DATA_PARALLEL = ("ddp", "zero1", "zero2", "zero3", "fsdp")


def cells() -> list[Cell]:
    """All, in order of worth."""
    to_owner = {"use_multi_rank_bucket_allreduce": False}
    found = [Cell(strategy) for strategy in DATA_PARALLEL]
    found += [Cell("zero2", zero=to_owner)]
    found += [Cell(strategy, method="lora") for strategy in DATA_PARALLEL]
    found += [Cell(strategy, passes=4) for strategy in DATA_PARALLEL]
    found += [Cell("fsdp", checkpointing=True), Cell("fsdp", dtype="bf16"), Cell("zero2", dtype="bf16")]
    found += [Cell(strategy, ranks=4) for strategy in ("fsdp", "zero2", "zero3", "ddp")]
    found += [Cell("tp"), Cell("pp", passes=4), Cell("ddp", dtype="bf16"), Cell("zero3", dtype="bf16")]
    found += [Cell("ddp", keys={"ddp_bucket_cap_mb": size}) for size in (1, 4)]
    found += [Cell("zero2", zero={"reduce_bucket_size": size}) for size in (250_000, 1_000_000)]
    found += [Cell("zero3", zero={"as_planned": True}), Cell("zero3", checkpointing=True), Cell("zero1", ranks=4)]
    found += [Cell("zero2", ranks=4, zero=to_owner), Cell("ddp", checkpointing=True)]
    found += [Cell("pp", ranks=4, passes=4, sizes={"pipeline": 2}), Cell("tp", ranks=4, sizes={"tensor": 2})]
    found += [Cell(strategy, method="lora", dtype="bf16") for strategy in ("ddp", "zero2", "zero3", "fsdp")]
    found += [Cell("tp", checkpointing=True)]
    return found


def prepare(folder: Path, ranks: Any) -> None:
    """The model and the rows, all of one length, unless they are there."""
    if not (folder / "untied").is_dir():
        ranks.call("benchmarks.communication_rows.recorder:make_model", str(folder), SIZES)
    rows = [{"instruction": f"Say number {i:03}", "output": f"The number is {i:03}."} for i in range(128)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def count(cell: Cell, folder: Path, ranks: Any) -> dict[str, Any]:
    """Run a cell; what the ranks sent in its last step.

    Returns:
        ``cell``, ``messages`` (by rank: ``[collective, bytes, elements, dtype, ranks, count]`` each) and ``batch``
        (rows and tokens of a micro-batch, where the run tells).

    Raises:
        RuntimeError: the run failed; with the end of what it said.
    """
    place = folder / cell.name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    hook = ["benchmarks.communication_rows.recorder:record", str(place / "counted")]
    log = place / "log"
    codes = ranks.run([_words(cell, folder, place)], log, hooks=[hook], devices=cell.strategy in ("tp", "cp"))
    if any(codes):
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        said = [line for line in lines if line.startswith("hf-recipes: ")] or lines[-8:]
        raise RuntimeError(f"{cell.name}: exit {codes}: {' '.join(said)[-1500:]}")
    parts = [json.loads((place / "counted" / f"{rank}.json").read_text()) for rank in range(cell.ranks)]
    counts = [Counter(tuple(message.values()) for message in part["steps"][-1]) for part in parts]
    messages = [[[*message, number] for message, number in each.items()] for each in counts]
    return {"cell": asdict(cell), "messages": messages, "batch": (parts[0]["batches"] or [None])[-1]}


def _words(cell: Cell, folder: Path, place: Path) -> list[str]:
    """What follows ``accelerate launch``, as `hf-recipes sft` would start the run."""
    from hf_recipes.plan.strategy.names import Sizes
    from hf_recipes.training.launch import launch_command
    from hf_recipes.training.strategy_file import strategy_file

    run = place / "run"
    recipe = place / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(_recipe(cell, folder, run)))
    file = strategy_file(cell.strategy, cell.ranks, run, Sizes(**cell.sizes))
    if (deepspeed := run / "deepspeed.json").is_file():
        config = json.loads(deepspeed.read_text())
        zero = dict(cell.zero)
        if cell.strategy == "zero3" and not zero.pop("as_planned", False):
            zero = {**_AS_IF_LARGE, **zero}
        config["zero_optimization"].update(zero)
        deepspeed.write_text(json.dumps(config))
    return launch_command("hf_recipes.sft", ["--config", str(recipe)], cell.ranks, file)[3:]


def _recipe(cell: Cell, folder: Path, run: Path) -> dict[str, Any]:
    values = {
        "model_name_or_path": str(folder / "untied"),
        "datasets": [{"path": str(folder / "rows.jsonl")}],
        "output_dir": str(run),
        "method": cell.method,
        "strategy": cell.strategy,
        "per_device_train_batch_size": MICRO,
        "gradient_accumulation_steps": cell.passes,
        "activation_checkpointing": cell.checkpointing,
        "bf16": cell.dtype == "bf16",
        "lora_r": LORA_R,
        "lora_dropout": 0.0,
        "max_steps": STEPS,
        "overfit_check": "off",
        "logging_steps": 1,
        "eval_share": 0,
        "save_strategy": "no",
        "plan_check": False,
        "trial_save": False,
        "verify_checkpoints": "off",
        "disable_tqdm": True,
        **{f"{name}_parallel_size": size for name, size in cell.sizes.items()},
        **cell.keys,
    }
    if cell.dtype == "fp32":
        values["dtype"] = "fp32"
    return values
