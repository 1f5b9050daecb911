"""Proof by behaviour: logits and answers of the live adapter and of the merged model, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.export.bases.trained_quantization import TrainedQuantization
from hf_recipes.export.proofs.verdict import blind_spot, problems

MEANING = (
    "both computed in fp32: what differs is that merged weights are rounded to their dtype once, while the live "
    "adapter adds its fp32 update to the stored base"
)
Prompts = Sequence[Sequence[Mapping[str, Any]] | Sequence[int]]
Rows = Sequence[Sequence[int]]


def compare_logits(
    adapters: Path | Sequence[tuple[Path, float]],
    base: Path,
    merged: Path,
    *,
    dtype: str = "bfloat16",
    update_kept: float | None = None,
    rounded: Mapping[str, Sequence[int] | None] | None = None,
    rows: Rows = (),
    labels: Rows = (),
    prompts: Prompts = (),
    base_values: str = "original",
    quantization: TrainedQuantization | None = None,
    tokenizer: Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare the adapter on its base, through PEFT, with the merged model, through plain transformers.

    A new process loads one model after the other, in fp32 and on a GPU when there is one. The adapter answers each
    prompt greedily; both models then give logits for prompts, answers and samples. Last the merged weights are rounded
    once more at random, which tells what rounding costs this model: the floor.

    Args:
        adapters: the adapter's directory, or several with their weights, whose updates add up.
        base: the directory of the base, as it was read for the merge.
        merged: the directory to prove; prompts are rendered by its chat template.
        dtype: torch's name of the dtype it was rounded to.
        update_kept: the share of the update that rounding left (`proofs.kept_update`); None where not measured.
        rounded: the tensors that were rounded (`proofs.rounding.rounded_tensors`); None for all.
        rows: samples of the training's data, token ids; long ones are cut.
        labels: of the rows, −100 for what was not learned: the loss that is told leaves that out.
        prompts: conversations to answer, beside the fixed ones: messages, or token ids up to the answer.
        base_values: which values of the base were merged into: ``original`` or ``dequantized``.
        quantization: how training quantised the base, if it did; then the distance to the adapter on that base is told
            too, and it is what a merge into ``dequantized`` values is held against.
        tokenizer: where the tokenizer of the training is; by default the first adapter's directory.
        seed: of the random rounding.

    Returns:
        `positions`, `kl_mean`, `kl_max` (nats, merged from adapter), `max_abs_difference`, `rms_difference` (logits),
        `top1_agreement`; `floor` and `effect` with the same numbers for rounding and for the adapter against its base;
        `update_share` (1: all of the adapter's effect), `update_kept` as given; `as_trained` likewise or None;
        `prompts`, `samples` (counts), `loss` by side; `same_generations`, `generations`; `missing_keys`,
        `unexpected_keys`, `tokenizer` (problems), `device`, `dtype`, `meaning`, `notices`, `seconds`.

    Raises:
        UserError: several adapters, or a weight, of a kind that PEFT cannot run side by side.
        CheckFailed: one of the models cannot be loaded or run, with the last line of what it said; or they are not the
            same model: see `proofs.verdict`.
    """
    started = time.perf_counter()
    weighted = _weighted(adapters)
    quantised = {"base": str(base), "quantization": asdict(quantization) if quantization else None}
    plain = {"base": str(base), "quantization": None}
    dequantized = base_values == "dequantized"
    result = _run(
        {
            "adapters": [[str(directory), weight] for directory, weight in weighted],
            "live": quantised if dequantized else plain,
            "as_trained": quantised if quantization and not dequantized else None,
            "merged": str(merged),
            "tokenizer": str(tokenizer or _tokenizer_of(weighted, merged)),
            "dtype": dtype,
            "rounded": None if rounded is None else dict(rounded),
            "rows": [list(row) for row in rows],
            "labels": [list(row) for row in labels],
            "prompts": [list(prompt) for prompt in prompts],
            "seed": seed,
        }
    )
    result["update_kept"] = update_kept
    if found := problems(result, dtype):
        raise CheckFailed(f"the merged model is not the adapter's: {'; '.join(found)}; no output was left")
    notices = _notices(result)
    for notice in notices:
        logger.warning("%s", notice)
    return {
        **result,
        "generations": [{**each, "is_tie": _is_tie(each, result)} for each in result["generations"]],
        "same_generations": sum(each["common_tokens"] is None for each in result["generations"]),
        "dtype": dtype,
        "meaning": MEANING,
        "notices": notices,
        "seconds": time.perf_counter() - started,
    }


def compare_base_values(
    adapter: Path,
    base: Path,
    merged: Mapping[str, Path],
    quantization: TrainedQuantization,
    *,
    rows: Rows = (),
    labels: Rows = (),
    prompts: Prompts = (),
) -> dict[str, Any]:
    """Hold merges into several base values against the adapter on the quantised base that training saw.

    Args:
        adapter, base: directories; the base is the 16-bit one that training quantised while loading.
        merged: directories by what they are called (``original``, ``dequantized``).
        quantization: how training quantised.
        rows, labels, prompts: as in `compare_logits`.

    Returns:
        ``distances``: for each merge, and for ``base`` (no adapter at all), what `compare_logits` tells of a distance;
        ``loss`` on the samples, in nats a token, of base, adapter and each merge, or None; ``samples``; ``seconds``.

    Raises:
        CheckFailed: a model cannot be loaded or run.
    """
    started = time.perf_counter()
    result = _run(
        {
            "adapters": [[str(adapter), 1.0]],
            "live": {"base": str(base), "quantization": asdict(quantization)},
            "directories": {name: str(directory) for name, directory in merged.items()},
            "rows": [list(row) for row in rows],
            "labels": [list(row) for row in labels],
            "prompts": [list(prompt) for prompt in prompts],
        }
    )
    return {**result, "seconds": time.perf_counter() - started}


def parity_table(result: Mapping[str, Any]) -> list[list[str]]:
    """`compare_base_values` as a table: a header, then a row for each merge and for the base alone."""
    table = [["base values", "KL to what was trained", "most", "same top token", "loss on samples"]]
    loss = result["loss"] or {}
    for name, each in result["distances"].items():
        label = "no adapter" if name == "base" else name
        own = f"{loss[name]:.4f}" if name in loss else "-"
        table.append([label, f"{each['kl_mean']:.2e}", f"{each['kl_max']:.2e}", f"{each['top1_agreement']:.2%}", own])
    if loss:
        table.append(["as trained", "0", "0", "100.00%", f"{loss['adapter']:.4f}"])
    return table


def _weighted(adapters: Path | Sequence[tuple[Path, float]]) -> list[tuple[Path, float]]:
    given = [(adapters, 1.0)] if isinstance(adapters, Path) else list(adapters)
    if len(given) == 1 and given[0][1] == 1:
        return given
    for directory, _ in given:
        config = read_json(directory / "adapter_config.json")
        if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("modules_to_save"):
            raise UserError(
                f"--proof logits: '{directory}' is no plain LoRA, and PEFT can run only such with weights or side by "
                "side: use --proof tensors."
            )
    return given


def _tokenizer_of(adapters: Sequence[tuple[Path, float]], merged: Path) -> Path:
    marks = ("tokenizer.json", "tokenizer_config.json")
    return next((each for each, _ in adapters if any((each / mark).is_file() for mark in marks)), merged)


def _is_tie(generation: Mapping[str, Any], result: Mapping[str, Any]) -> bool | None:
    """Whether the first choice led by no more than rounding moves two logits; None for the same answer."""
    if generation["common_tokens"] is None:
        return None
    return bool(generation["gap"] <= 2 * result["floor"]["max_abs_difference"])


def _notices(result: Mapping[str, Any]) -> list[str]:
    notices = []
    if spot := blind_spot(result):
        notices.append(spot)
    if unplaced := result["unplaced"]:
        notices.append(
            f"{len(unplaced)} merged tensors are not in the loaded model by name ({unplaced[0]}, …): the floor is "
            "measured without them."
        )
    return notices


def _run(order: Mapping[str, Any]) -> dict[str, Any]:
    """Give the order to a new process and return its result."""
    command = [sys.executable, "-m", "hf_recipes.export.proofs.behaviour"]
    # Everything is in the directories. Threads that wait must sleep: they spin, where cores are shared, for minutes.
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, check=False, env=settings)
    if done.returncode != 0:
        raise CheckFailed(f"the merged model cannot be compared with the adapter ({_reason(done)}); no output was left")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == -signal.SIGKILL:
        return "the process was killed, most likely for memory: use --proof tensors"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
