"""A tiny recipe, planned for machines and started on hosts of namespaces by the lines that the plan prints."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hosts import INTERFACE, Host

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.search import Considered
from hf_recipes.plan.strategy.step_cost import StepCost
from hf_recipes.plan.strategy.write import Written, write_plan

ROOT = Path(__file__).resolve().parents[2]
GLOBAL_BATCH = 16
ELASTIC = "--nnodes 2 --nproc_per_node 1 --max_restarts 3 --rdzv_backend c10d --rdzv_endpoint node0:29400 --rdzv_id job"


@dataclass(frozen=True)
class Job:
    """A run planned: what was written, where it trains."""

    plan: Written
    run: Path

    @property
    def recipe(self) -> Path:
        return self.plan.files[0]

    def events(self, kind: str) -> list[dict]:
        """Events of one kind, of all ranks."""
        files = sorted(self.run.glob("events*.jsonl"))
        lines = [line for file in files for line in file.read_text().splitlines() if line.endswith("}")]
        found = [json.loads(line) for line in lines]  # a last line may be in the making
        return [event for event in found if event["kind"] == kind]

    def losses(self) -> dict[int, float]:
        """By step; of a step trained twice the last."""
        return {event["step"]: event["loss"] for event in self.events("log") if "loss" in event and event["step"]}

    def last_step(self) -> int:
        return max(self.losses(), default=0) if self.run.is_dir() else 0

    def alarms(self, verdict: str) -> list[dict]:
        return [event for event in self.events("alarm") if event.get("verdict") == verdict]

    def status(self) -> dict:
        return json.loads((self.run / "status.json").read_text())


def write_data(folder: Path, rows: int = 64, name: str = "data.jsonl") -> Path:
    """Rows to train on."""
    made = [{"instruction": f"Say number {i}", "output": f"The number is {i * 7 % 10}."} for i in range(rows)]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in made))
    return folder / name


def plan_job(folder: Path, model: Path, layout: Layout, **keys) -> Job:
    """Plan a full fine-tune of a few steps."""
    values = {
        "model_name_or_path": str(model),
        "datasets": [{"path": str(folder.parent / "data.jsonl")}],
        "method": "full",
        "eval_share": 0,
        "plan_check": False,
        "bf16": False,
        "learning_rate": 1e-3,
        "max_steps": 3,
        "overfit_check": "off",
        "logging_steps": 1,
        "save_steps": 100,
        "disable_tqdm": True,
        "output_dir": str(folder / "run"),
        **keys,
    }
    settings = TrainingSettings(micro_batch=2, accumulation=GLOBAL_BATCH // layout.ranks // 2)
    memory = MemoryEstimate({"backward": {"weights": 1.0}})
    taken = Considered(layout, settings, memory, StepCost(1.0), True)
    return Job(write_plan(folder, taken, values), folder / "run")


def start_line(host: Host, line: str, log: Path, **environment: str) -> subprocess.Popen:
    """Start a printed line (`hf-recipes sft …`, `torchrun …`) on a host; all that it says goes into `log`."""
    first, *words = shlex.split(line.replace("FIRST_NODE", "node0"))
    ours = ["-c", "from hf_recipes.cli.main import main; raise SystemExit(main())"]
    command = {"hf-recipes": ours, "torchrun": ["-m", "torch.distributed.run"]}[first]
    with log.open("w") as file:
        return host.start([sys.executable, *command, *words], env=on_cpu(environment), stdout=file, stderr=file)


def start_ranks(host: Host, job: Job, log: Path, *, number: int, local: int = 2, machines: int = 2) -> list:
    """Start the ranks of machine `number` each on its own, without a launcher, as Kubernetes or srun do."""
    shared = {
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(local * machines),
        "LOCAL_WORLD_SIZE": str(local),
    }
    with log.open("w") as file:
        return [
            host.start(
                [sys.executable, "-m", "hf_recipes.sft", "--config", str(job.recipe)],
                env=on_cpu({**shared, "RANK": str(number * local + place), "LOCAL_RANK": str(place)}),
                stdout=file,
                stderr=file,
            )
            for place in range(local)
        ]


def on_cpu(environment: dict[str, str]) -> dict[str, str]:
    """What ranks on these hosts need in theirs."""
    return {
        **os.environ,
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "PYTHONPATH": str(ROOT),
        **environment,
    }
