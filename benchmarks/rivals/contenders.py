"""Who takes part, and how each is started: a configuration file beside this one, changes to it, a command line."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import yaml
from rivals.rows import SYSTEM

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
LITGPT_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Job:
    """What is to be trained, the same for everybody. Paths are absolute; `peers` holds the rivals' environments,
    `work` everything this benchmark writes."""

    model: Path
    data: Path
    peers: Path | None
    work: Path
    steps: int
    batch: int = 4
    length: int = 512
    bf16: bool = False
    threads: int = 1


@dataclass(frozen=True)
class Contender:
    """One way to train.

    Args:
        command: Program and arguments; ``$config`` is the file made from `config` and `changes`.
        config: Name of the YAML file beside this one.
        changes: Keys laid over that file, nested ones dotted.
        environment: Name of the virtual environment under the directory of rivals (``venv-NAME``); None: this one.
        plugins: Directories beside this file that it imports from.
        variables: Environment variables.
        before: Commands run once, unmeasured, each with the path that shows that it is done.
        pad_id: What it fills rows up with, where that is not the tokenizer's pad token.
        loss_is_sum: It calls `backward` on the sum over labels, not on their mean.
        remark: For the table.
    """

    command: tuple[str, ...]
    config: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    environment: str | None = None
    plugins: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    before: tuple[tuple[str, tuple[str, ...]], ...] = ()
    pad_id: int | None = None
    loss_is_sum: bool = False
    remark: str = ""

    def binaries(self, job: Job) -> Path:
        """The directory of the environment's programs."""
        own = Path(sys.executable).parent
        if self.environment is None or job.peers is None:
            return own
        theirs = job.peers / f"venv-{self.environment}" / "bin"
        return own if self.environment == "trl" and not theirs.is_dir() else theirs

    def missing(self, job: Job) -> str | None:
        """Why it cannot take part, if so."""
        program = self.binaries(job) / self.command[0]
        return None if program.exists() else f"no {program}"

    def prepare(self, job: Job, out: Path) -> list[str]:
        """Write the configuration into `out` and return the command line."""
        values = placeholders(job, out)
        text = Template((HERE / self.config).read_text(encoding="utf-8")).substitute(values)
        config = out / self.config
        settings = yaml.safe_load(text)
        for name, value in self.changes.items():
            lay_over(settings, name, value)
        config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return self.fill(self.command, {**values, "config": str(config)}, job)

    def preparations(self, job: Job, out: Path) -> list[list[str]]:
        """Command lines of what must be done once before, and is not yet."""
        values = placeholders(job, out)
        return [
            self.fill(command, values, job)
            for done, command in self.before
            if not Path(Template(done).substitute(values)).exists()
        ]

    def fill(self, command: tuple[str, ...], values: Mapping[str, str], job: Job) -> list[str]:
        program, *arguments = (Template(part).substitute(values) for part in command)
        return [str(self.binaries(job) / program), *arguments]

    def process_environment(self, job: Job, record: Path, pad_id: int) -> dict[str, str]:
        """Environment variables of its process: the recorder, one set of threads, no network, no telemetry, no GPU."""
        paths = [HERE.parent / "step_recorder", *(HERE / plugin for plugin in self.plugins)]
        if self.environment is None:
            paths.append(REPOSITORY)
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {
            **kept,
            "PATH": f"{self.binaries(job)}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "STEP_RECORD": str(record),
            "STEP_RECORD_PAD": str(pad_id if self.pad_id is None else self.pad_id),
            "OMP_NUM_THREADS": str(job.threads),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "DO_NOT_TRACK": "1",
            **self.variables,
        }


def lay_over(settings: dict[str, Any], name: str, value: Any) -> None:
    """Set a key; ``a.b`` is the key `b` within `a`."""
    *outer, last = name.split(".")
    for part in outer:
        settings = settings[part]
    settings[last] = value


def placeholders(job: Job, out: Path) -> dict[str, str]:
    """What `$name` stands for in configurations and commands."""
    model = json.loads((job.model / "config.json").read_text(encoding="utf-8"))
    rope = {**model, **(model.get("rope_parameters") or {})}
    return {
        **{name: str(value) for name, value in model.items() if isinstance(value, int | float)},
        "rope_theta": str(rope["rope_theta"]),
        "model": str(job.model),
        "data": str(job.data),
        "work": str(job.work),
        "out": str(out),
        "steps": str(job.steps),
        "batch": str(job.batch),
        "length": str(job.length),
        "dtype": "bfloat16" if job.bf16 else "float32",
        "bf16": "true" if job.bf16 else "false",
        "litgpt_precision": "bf16-true" if job.bf16 else "32-true",
        "torchtune_dtype": "bf16" if job.bf16 else "fp32",
        "litgpt_name": LITGPT_NAME,
        "system": SYSTEM,
    }


def copy_for_litgpt(job: Job) -> None:
    """litgpt converts a model inside its own directory, named as it knows it: give it a copy."""
    target = job.work / "litgpt" / LITGPT_NAME
    if not target.exists():
        shutil.copytree(job.model, target)


def cast_model(source: Path, target: Path, bf16: bool) -> Path:
    """A copy of the model in the dtype of the job. Some trainers have no switch that loads another dtype than the one
    the model is stored in and names in its config. Returns `target`."""
    import torch
    from safetensors.torch import load_file, save_file

    if source == target:
        raise SystemExit(f"{source} is where the copy of the model goes: name another directory")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = config["torch_dtype"] = "bfloat16" if bf16 else "float32"
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    dtype = torch.bfloat16 if bf16 else torch.float32
    for file in target.glob("*.safetensors"):
        tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
    return target


_OURS: dict[str, Any] = {"command": ("python", "-m", "hf_recipes.sft", "--config", "$config"), "config": "ours.yaml"}
_TRL: dict[str, Any] = {"command": ("trl", "sft", "--config", "$config"), "config": "trl.yaml", "environment": "trl"}
_LLAMAFACTORY: dict[str, Any] = {
    "command": ("llamafactory-cli", "train", "$config"),
    "config": "llamafactory.yaml",
    "environment": "llamafactory",
    "plugins": ("plugins/stubs",),
}
_SWIFT: dict[str, Any] = {
    "command": ("swift", "sft", "$config"),
    "config": "swift.yaml",
    "environment": "swift",
    "variables": {"USE_HF": "1"},
}
_AXOLOTL: dict[str, Any] = {
    "command": ("axolotl", "train", "$config", "--launcher", "python"),
    "config": "axolotl.yaml",
    "environment": "axolotl",
    "plugins": ("plugins",),
    "variables": {"AXOLOTL_DO_NOT_TRACK": "1"},
}
_OUMI: dict[str, Any] = {
    "command": ("oumi", "train", "-c", "$config"),
    "config": "oumi.yaml",
    "environment": "oumi",
    "variables": {"OUMI_TELEMETRY": "0"},
}
_LITGPT: dict[str, Any] = {
    "command": ("litgpt", "finetune_lora", "--config", "$config"),
    "config": "litgpt.yaml",
    "environment": "litgpt",
    "before": (
        (
            "$work/litgpt/$litgpt_name/lit_model.pth",
            ("litgpt", "convert_to_litgpt", "$work/litgpt/$litgpt_name", "--model_name", "$litgpt_name"),
        ),
    ),
    "pad_id": 0,
}
_TORCHTUNE: dict[str, Any] = {
    "command": ("tune", "run", "lora_finetune_single_device", "--config", "$config"),
    "config": "torchtune.yaml",
    "environment": "torchtune",
    "plugins": ("plugins",),
    "loss_is_sum": True,
}

CONTENDERS: dict[str, Contender] = {
    "ours": Contender(**_OURS, remark="watchers, verification, event log on"),
    "ours-checkpointing": Contender(**_OURS, changes={"activation_checkpointing": True}, remark="the same"),
    "trl": Contender(**_TRL, remark="defaults (checkpointing)"),
    "trl-best": Contender(
        **_TRL,
        changes={"packing": True, "packing_strategy": "bfd", "gradient_checkpointing": False},
        remark="isolated packing, no checkpointing",
    ),
    "llamafactory": Contender(**_LLAMAFACTORY, remark="defaults (checkpointing)"),
    "llamafactory-best": Contender(
        **_LLAMAFACTORY, changes={"disable_gradient_checkpointing": True}, remark="no checkpointing"
    ),
    "swift": Contender(**_SWIFT, remark="defaults (checkpointing)"),
    "swift-best": Contender(**_SWIFT, changes={"gradient_checkpointing": False}, remark="no checkpointing"),
    "axolotl": Contender(**_AXOLOTL, remark="checkpointing"),
    "axolotl-best": Contender(
        **_AXOLOTL,
        changes={"gradient_checkpointing": False, "group_by_length": True},
        remark="no checkpointing, grouped by length",
    ),
    "litgpt": Contender(**_LITGPT, remark="no checkpointing to switch"),
    "oumi": Contender(**_OUMI, remark="checkpointing"),
    "oumi-best": Contender(
        **_OUMI, changes={"training.enable_gradient_checkpointing": False}, remark="no checkpointing"
    ),
    "torchtune": Contender(**_TORCHTUNE, remark="checkpointing, chunked loss"),
    "torchtune-best": Contender(
        **_TORCHTUNE, changes={"enable_activation_checkpointing": False}, remark="no checkpointing, chunked loss"
    ),
}
