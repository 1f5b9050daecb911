"""Published peaks of three stacks, and what their settings are in the planner's terms.

The figures are read from a file that is not part of this repository (``rows`` with ``model``, ``method``,
``micro_batch``, ``seq_len``, ``measured``, ``unit``, ``memory_kind``, ``source`` and flags).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memory_rows import litgpt

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.settings import TrainingSettings

_UNITS = {"GiB": 2.0**30, "GB": 1e9}
_BF16 = {"weights_dtype": "bfloat16", "trained_dtype": "bfloat16", "autocast_dtype": None}
_QUERY_VALUE = ("q_proj", "v_proj")
_ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# Alpaca's longest row in tokens of Llama 2, prompt included (litgpt's resource tables say so); litgpt put it into the
# first batch (`get_batch` of 2023). Rows that a fine-tune on Alpaca without packing pads to are about 512 tokens at the
# most, in most steps fewer.
_LONGEST_ALPACA, _PADDED_ALPACA = 1304, 512


@dataclass(frozen=True)
class Published:
    """One published figure.

    Attributes:
        measured: bytes.
        kind: ``active`` (live tensors) or ``reserved`` (of the allocator).
        settings: of the run, in the planner's terms.
        targets, r: of LoRA; empty and 0 for a full fine-tune.
        untied: the stack keeps head and embeddings apart.
        left_out: why it does not count in the median; empty where it does.
        besides: bytes that the stack's own code holds besides, for the geometry with its adapters.
    """

    name: str
    model: str
    measured: float
    kind: str
    settings: TrainingSettings
    targets: tuple[str, ...] = ()
    r: int = 0
    untied: bool = False
    left_out: str = ""
    besides: Callable[[Geometry], float] = lambda _: 0.0


def read_published(path: Path) -> list[Published]:
    """The rows of the file, in its order.

    Raises:
        ValueError: a row is of a stack that is not known here.
    """
    return [_published(row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def _published(row: dict[str, Any]) -> Published:
    for word, terms in _STACKS.items():
        if word in row["source"]:
            published: Published = terms(row, _common(row))
            return replace(published, name=_name(row, word))
    raise ValueError(f"no settings are known for: {row['source']}")


def _common(row: dict[str, Any]) -> Published:
    settings = TrainingSettings(
        method=row["method"],
        quantization="nf4" if row["method"] == "qlora" else None,
        micro_batch=row["micro_batch"],
        tokens=row["seq_len"] or _LONGEST_ALPACA,
        checkpointing="all" if row.get("grad_ckpt") else "off",
    )
    lora = row["method"] in ("lora", "qlora")
    inference = "inference, no training step" if row["method"] == "inference" else ""
    return Published(
        "",
        row["model"],
        row["measured"] * _UNITS[row["unit"]],
        "active",
        settings,
        tuple(row.get("targets", _QUERY_VALUE)) if lora else (),
        row.get("r", 8) if lora else 0,
        left_out=inference,
    )


def _torchtune(row: dict[str, Any], common: Published) -> Published:
    """All in bf16 with AdamW's states, without autocast; the loss on 16-bit logits in eight chunks where ``chunked``.
    The README's table is of 2024-09 (commit 30b8519e): compiled, packed, with the loss and the modules of
    `recipes/configs/llama3/8B_{lora,qlora}_single_device.yaml` of that day, r 8."""
    table = common.r > 0
    settings = replace(
        common.settings,
        **_BF16,
        tokens=common.settings.tokens if row.get("packed") else _PADDED_ALPACA,
        compiled=bool(row.get("compile")) or table,
        loss="split_16bit" if row.get("chunked_loss") or table else "full",
    )
    targets = {"lora": _QUERY_VALUE, "qlora": _ALL_LINEAR}.get(row["method"], ())
    return replace(common, settings=settings, targets=targets)


def _peft(row: dict[str, Any], common: Published) -> Published:
    """`method_comparison/MetaMathQA` (`default_training_params.json`, `experiments/lora/*/adapter_config.json`: dropout
    0, no rank pattern): a plain loop without autocast over a bf16 base, adapters in fp32, transformers' loss, padded
    rows with a mask; the longest rows reach the cap. Evaluation generates 50 rows in the same process. Reserved memory
    is told."""
    settings = replace(
        common.settings,
        weights_dtype="bfloat16",
        trained_dtype="float32" if common.r else "bfloat16",
        autocast_dtype=None,
        optimizer="adamw_torch",
        loss="full",
        padding_mask=True,
        generates=(50, row["seq_len"]),
    )
    return replace(common, settings=settings, kind="reserved")


def _litgpt(row: dict[str, Any], common: Published) -> Published:
    """`config_hub/finetune/*/{lora,qlora}.yaml`: ``bf16-true``, r 32 on q and v, dropout 0.05, rows of Alpaca2k cut at
    512, shuffled, so that two steps of that length follow each other somewhere; ``bnb.nf4`` is without double
    quantisation, and bitsandbytes 0.42, which litgpt asks for, keeps the input of each product. Heads are not tied.
    What else its code holds is in `memory_rows.litgpt`."""
    settings = replace(common.settings, **_BF16, loss="full_16bit", lora_dropout=0.05 if common.r else 0.0)
    quantized = common.settings.method == "qlora"
    settings = replace(settings, double_quantization=False, quantized_keeps_input=quantized)
    if quantized:  # `instantiate_bnb_optimizer`
        settings = replace(settings, optimizer="paged_adamw_32bit")
    left_out = common.left_out
    if row["method"] == "full" and row["measured"] * _UNITS[row["unit"]] < 8e9 * 1.236:
        left_out = "less than weights, gradients and AdamW's states in bf16 (8 bytes a parameter, 9.9 GB)"
    return replace(
        common,
        settings=settings,
        r=32 if common.r else 0,
        untied=True,
        left_out=left_out,
        besides=lambda geometry: litgpt.besides(geometry, settings, step_before=True),
    )


def _litgpt_2023(row: dict[str, Any], common: Published) -> Published:
    """As above with r 8 and Alpaca, whose longest row was put into the first step; double quantisation where it says
    so."""
    later = _litgpt(row, common)
    settings = replace(later.settings, tokens=_LONGEST_ALPACA, double_quantization=bool(row.get("double_quant")))
    return replace(
        later,
        settings=settings,
        r=8 if common.r else 0,
        besides=lambda geometry: litgpt.besides(geometry, settings, step_before=False),
    )


_STACKS = {
    "torchtune": _torchtune,
    "peft": _peft,
    "litgpt config_hub": _litgpt,
    "litgpt resource": _litgpt_2023,
}


def _name(row: dict[str, Any], stack: str) -> str:
    flags = [key for key in ("packed", "compile", "chunked_loss", "grad_ckpt", "double_quant") if row.get(key)]
    rank = [f"r{row['r']}"] if "r" in row else []
    parts = [stack.split()[0], row["model"], row["method"], f"{row['micro_batch']}x{row['seq_len']}", *rank, *flags]
    return " ".join(parts)
