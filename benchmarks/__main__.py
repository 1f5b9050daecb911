"""All benchmarks on a small setting, one after another: `python -m benchmarks [--only NAME …] [--write]`.

Takes under 20 minutes on two CPU cores and needs nothing but this environment; SmolLM2-135M-Instruct is found as the
quickstart finds it. Prints each table as it comes; `--write` puts them into `docs/benchmarks.md`, with versions, date
and commands. Ratios within a table can be compared, times of different machines cannot. The full settings, and the
rivals that need environments of their own, are in `README.md` here. Exit code 1 when a benchmark failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
# What others print to stdout (DeepSpeed when it is imported, the Trainer's logs), and versions: the page has them once.
NO_RESULT = re.compile(r"^\[\d{4}-.*\] \[(WARNING|INFO)\]|^\{'(python|loss|eval_\w+|train_runtime)':")
MODEL = "MODEL"  # in a command: the directory of SmolLM2


@dataclass(frozen=True)
class Benchmark:
    """A question, the command that answers it on a small setting, and how to read the answer."""

    question: str
    command: tuple[str, ...]
    reading: str


BENCHMARKS = {
    "startup": Benchmark(
        "How long until a command answers?",
        ("startup.py", "--rounds", "3"),
        "Whole processes. What a help costs is what every wrong key costs before it is told.",
    ),
    "step": Benchmark(
        "How fast is a training step beside TRL's?",
        ("training_step.py", MODEL, "--pairs", "3"),
        "The same batches in turn, LoRA, fp32; the losses of each pair agree to 1e-3.",
    ),
    "data": Benchmark(
        "How fast are data prepared?",
        ("preparation.py", MODEL, "--rows", "3000", "--rounds", "3"),
        "The same JSONL file to a tokenised and masked set, in turn.",
    ),
    "merge": Benchmark(
        "How fast is a merge, and in what memory?",
        ("merge.py", "--size", "135m", "--rounds", "3", "--targets", "all"),
        "Whole commands on random weights of SmolLM2-135M's shape, synced; `cp` with the import of torch is the limit.",
    ),
    "verify": Benchmark(
        "How fast is a checkpoint verified?",
        ("verify_speed.py", "--megabytes", "512", "--rounds", "3"),
        "Beside a plain read with SHA-256 of the same files, as many threads.",
    ),
    "memory": Benchmark(
        "How far is planned memory from a real step's?",
        ("memory_error.py",),
        "Peaks measured before, kept in `results/`; `--measure` runs the steps anew.",
    ),
    "saves": Benchmark(
        "Is a corrupt checkpoint ever used, or a verified one lost?",
        ("checkpoint_faults.py", "--kills", "6", "--part", "0.05"),
        "A sample of the faults: SIGKILL in a save, cut and changed files, a full disk; the whole has 200 kills.",
    ),
    "watch": Benchmark(
        "How soon is a fault seen, and does a healthy run ring?",
        ("watching_trials.py", "--one-rank"),
        "Faults put into real runs of tiny models, and healthy runs.",
    ),
    "overfit": Benchmark(
        "Does the overfit test tell broken set-ups from sound ones?",
        ("overfit_trials.py", "--only", *("LoRA, r 16", "learning rate 10", "shifted labels", "frozen adapter")),
        "SmolLM2-135M, one thing changed at a time; four of 31 set-ups.",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.relative_to(HERE.parent)}")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write is for all of them: leave out --only.")
    parts, failed = [], []
    for name in options.only or BENCHMARKS:
        part, code = run(name, BENCHMARKS[name])
        print(part, flush=True)
        parts.append(part)
        failed += [name] if code else []
        if options.write:  # as they come: what was measured is kept whatever happens to the next
            PAGE.write_text("\n".join([header(), *parts]), encoding="utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def run(name: str, benchmark: Benchmark) -> tuple[str, int]:
    """One benchmark's part of the page, and its exit code."""
    script, *arguments = benchmark.command
    known = [model_directory() if argument == MODEL else argument for argument in arguments]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(HERE / script), *known], stdout=subprocess.PIPE, text=True, env=calm_environment()
    )
    shown = " ".join(f'"{part}"' if " " in part else part for part in ("benchmarks/" + script, *arguments))
    table = as_markdown(name, results_of(done.stdout))
    seconds = time.monotonic() - started
    end = "" if not done.returncode else f"\n**It ended with exit code {done.returncode}.**\n"
    heading = f"## {benchmark.question}\n\n{benchmark.reading} `python {shown}` ({seconds:.0f} s):\n"
    return f"{heading}\n{table}\n{end}", done.returncode


def results_of(output: str) -> str:
    """What was printed, without what is no result."""
    return "\n".join(line for line in output.strip().splitlines() if not NO_RESULT.search(line))


def as_markdown(name: str, output: str) -> str:
    """What a benchmark printed, as it can stand on a page: Markdown as it is, all else as text."""
    if name == "overfit":
        command = [sys.executable, str(HERE / "overfit_trials.py"), "--markdown"]
        drawn = subprocess.run(command, input=output, stdout=subprocess.PIPE, text=True, check=False)
        output = drawn.stdout.strip() or output
    if name == "memory":
        output = output.split("\n\n")[-1]  # the summary; the rows are in results/
    if any(line.startswith("|") for line in output.splitlines()):
        return re.sub(r"(?m)(\|)\n(?=[^|\n])", r"\1\n\n", output)  # what follows a table is no row of it
    return f"```text\n{output}\n```"


def model_directory() -> str:
    from hf_recipes.models.smollm2 import find_smollm2

    return str(find_smollm2().path)


def calm_environment() -> dict[str, str]:
    return {**os.environ, "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}


def header() -> str:
    from hf_recipes.core.versions import stack_versions

    versions = ", ".join(f"{name} {version}" for name, version in stack_versions().items() if name != "hf-recipes")
    return (
        "# How fast, how exact?\n\n"
        f"`python -m benchmarks --write` made this page on {datetime.date.today()}: each benchmark on a small setting, "
        f"{os.cpu_count()} CPU cores ({platform.machine()}), {versions}. Compare numbers within a table; the larger "
        "settings, beside LLaMA-Factory, ms-swift, axolotl and others, are in `benchmarks/results/`, and how to repeat "
        "them in `benchmarks/README.md`.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
