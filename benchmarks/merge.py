"""`hf-recipes merge` against PEFT's `merge_and_unload` + save, other tools' exports, and `cp` as the limit.

    python benchmarks/merge.py [--size 1.5b] [--model DIR] [--rounds 3] [--targets qv all] [--rival NAME=ENVIRONMENT …]

Whole commands on the same random base and adapter (`synthetic_model.py`), one after the other in every round, each with
the files it wrote synced to disk; our own with its default proof. `cp` is `cp --reflink=never` plus the time to import
torch. Told are medians, the ratios of the medians, and the peak memory above that of an interpreter with torch.
A rival is a virtual environment: llamafactory, axolotl, swift or mergekit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import synthetic_model

PEFT = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from peft import PeftModel
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
PeftModel.from_pretrained(model, sys.argv[2]).merge_and_unload().save_pretrained(sys.argv[3])
AutoTokenizer.from_pretrained(sys.argv[2]).save_pretrained(sys.argv[3])
"""


@dataclass(frozen=True)
class Case:
    """One merge: where base and adapter lie and where the result goes; `scratch` for a tool's configuration."""

    base: Path
    adapter: Path
    output: Path
    scratch: Path


@dataclass(frozen=True)
class Cost:
    """Of one whole command: wall and CPU seconds with the sync of what it wrote, and peak memory in MB."""

    wall: float
    cpu: float
    peak_mb: float


def ours(case: Case) -> list[str]:
    tool = Path(sysconfig.get_path("scripts")) / "hf-recipes"
    return [
        str(tool),
        "merge",
        str(case.adapter),
        "--base",
        str(case.base),
        "--output",
        str(case.output),
        "--to",
        "bf16",
    ]


def ours_without_proof(case: Case) -> list[str]:
    return [*ours(case), "--proof", "off"]


def peft(case: Case) -> list[str]:
    return [sys.executable, "-c", PEFT, str(case.base), str(case.adapter), str(case.output)]


def copy(case: Case) -> list[str]:
    line = f"cp -r --reflink=never '{case.base}' '{case.output}' && '{sys.executable}' -c 'import torch'"
    return ["sh", "-c", line]


def llamafactory(case: Case, environment: Path) -> list[str]:
    settings = {
        "model_name_or_path": str(case.base),
        "adapter_name_or_path": str(case.adapter),
        "template": "default",
        "export_dir": str(case.output),
        "export_device": "cpu",
        "export_legacy_format": False,
    }
    return [str(environment / "bin/llamafactory-cli"), "export", _settings(case, "llamafactory", settings)]


def axolotl(case: Case, environment: Path) -> list[str]:
    settings = {
        "base_model": str(case.base),
        "adapter": "lora",
        "lora_model_dir": str(case.adapter),
        "lora_r": synthetic_model.RANK,
        "lora_alpha": 2 * synthetic_model.RANK,
        "lora_target_modules": ["q_proj", "v_proj"],
        "output_dir": str(case.output),
        "datasets": [{"path": "unused", "type": "alpaca"}],
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-4,
        "bf16": True,
    }
    return [str(environment / "bin/axolotl"), "merge-lora", _settings(case, "axolotl", settings)]


def swift(case: Case, environment: Path) -> list[str]:
    return [
        *(str(environment / "bin/swift"), "export", "--adapters", str(case.adapter), "--model", str(case.base)),
        *("--model_type", "llama", "--template", "default", "--merge_lora", "true", "--output_dir", str(case.output)),
        *("--torch_dtype", "bfloat16"),
    ]


def mergekit(case: Case, environment: Path) -> list[str]:
    settings = {
        "merge_method": "passthrough",
        "dtype": "bfloat16",
        "models": [{"model": f"{case.base}+{case.adapter}"}],
    }
    return [
        *(str(environment / "bin/mergekit-yaml"), _settings(case, "mergekit", settings), str(case.output)),
        *("--copy-tokenizer", "--lora-merge-cache", str(case.scratch / "mergekit")),
    ]


RIVALS: dict[str, Callable[[Case, Path], list[str]]] = {
    "llamafactory": llamafactory,
    "axolotl": axolotl,
    "swift": swift,
    "mergekit": mergekit,
}


def _settings(case: Case, name: str, settings: dict[str, object]) -> str:
    """JSON is YAML."""
    file = case.scratch / f"{name}.yaml"
    file.write_text(json.dumps(settings))
    return str(file)


def run(command: list[str], output: Path, log: Path) -> Cost | None:
    """Run a command to its end and sync what it wrote; None when it fails."""
    shutil.rmtree(output, ignore_errors=True)
    os.sync()
    started = time.perf_counter()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = f"{Path(command[0]).parent}:{environment['PATH']}"
    with open(log, "wb") as stream:
        child = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
    for file in output.rglob("*") if output.is_dir() else ():
        if file.is_file():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())
    wall = time.perf_counter() - started
    if status:
        return None
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3))


def compare(base: Path, adapter: Path, rivals: dict[str, Path], rounds: int, scratch: Path) -> None:
    """Run all contenders in turn, `rounds` times, and print the table."""
    case = Case(base, adapter, scratch / "output", scratch)
    contenders: dict[str, Callable[[Case], list[str]]] = {
        "cp + import torch": copy,
        "hf-recipes merge": ours,
        "hf-recipes, no proof": ours_without_proof,
        "peft": peft,
    }
    for name, environment in rivals.items():
        contenders[name] = lambda case, name=name, environment=environment: RIVALS[name](case, environment)
    torch_only = run([sys.executable, "-c", "import torch"], case.output, scratch / "torch.log")
    assert torch_only, "torch cannot be imported"
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, command in contenders.items():
            log = scratch / f"{name.replace(' ', '-')}.log"
            cost = run(command(case), case.output, log)
            if cost is None:
                print(f"{name} failed: {_last_line(log)}", file=sys.stderr)
            else:
                costs[name].append(cost)
    _print_table(costs, torch_only.peak_mb, rounds)
    shutil.rmtree(case.output, ignore_errors=True)


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no word"])[-1][:300]


def _print_table(costs: dict[str, list[Cost]], torch_mb: float, rounds: int) -> None:
    medians = {
        name: Cost(*(statistics.median(getattr(cost, key) for cost in measured) for key in ("wall", "cpu", "peak_mb")))
        for name, measured in costs.items()
        if measured
    }
    own = medians["hf-recipes merge"]
    print(f"{'':22} {'wall s':>8} {'CPU s':>8} {'MB above torch':>15} {'wall / ours':>12} {'CPU / ours':>11}")
    for name, cost in medians.items():
        above = cost.peak_mb - torch_mb
        print(
            f"{name:22} {cost.wall:8.1f} {cost.cpu:8.1f} {above:15.0f} {cost.wall / own.wall:12.2f} "
            f"{cost.cpu / own.cpu:11.2f}"
        )
    print(f"(medians of {rounds}; an interpreter with torch: {torch_mb:.0f} MB)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=synthetic_model.SIZES, default="1.5b")
    parser.add_argument("--model", type=Path, help="a directory of synthetic_model.py, in place of a new one")
    parser.add_argument("--targets", nargs="+", choices=synthetic_model.TARGETS, default=["qv", "all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=ENVIRONMENT")
    options = parser.parse_args()
    rivals = {name: Path(path) for name, path in (given.split("=", 1) for given in options.rival)}
    if unknown := set(rivals) - set(RIVALS):
        parser.error(f"--rival: {', '.join(unknown)} is none of {', '.join(RIVALS)}")
    with tempfile.TemporaryDirectory() as directory:
        model = options.model or Path(directory) / "model"
        if options.model is None:
            synthetic_model.make(model, options.size)
        for target in options.targets:
            print(f"\n{model.name}, LoRA on {target}:")
            compare(model / "base", model / f"lora-{target}", rivals, options.rounds, Path(directory))


if __name__ == "__main__":
    main()
