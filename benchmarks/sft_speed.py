"""Whole LoRA fine-tuning runs of hf_recipes and of its rivals, by their own command lines, interleaved, on a CPU.

    python benchmarks/sft_speed.py MODEL --peers DIR --data ROWS.jsonl [--rounds 3] [--steps 20] [--only ours,trl,…]
    python benchmarks/sft_speed.py MODEL --peers DIR --data ROWS.jsonl --growth

Everybody trains the same rows with the same settings (`rivals/*.yaml`), on the same cores. A recorder on PYTHONPATH
(`step_recorder/`) notes when each step ended and what went through it. Told are useful tokens (prompt and answer, no
padding) per CPU second and per wall second, peak memory, the training loss, and the loss of each result on rows nobody
trained on; beside them what this machine's GEMM speed, measured in the same rounds, would allow. `--growth` measures
lengths from 128 to 2048 and batches from 1 to 16 instead. How to install the rivals: `rivals/README.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rivals.contenders import CONTENDERS, HERE, Contender, Job, cast_model, copy_for_litgpt
from rivals.rows import Sizes, fit_rows, full_rows, read_rows, row_sizes, write_rows
from rivals.running import Measurement, RunFailed, measure, run

GROWTH_LENGTHS, GROWTH_BATCHES = (128, 256, 512, 1024, 2048), (1, 2, 4, 8, 16)
GROWTH_LENGTH, GROWTH_BATCH = 256, 4  # of the other sweep's runs
LOG_LINES = 12

Results = dict[str, list[Measurement]]


def main() -> None:
    options = parse()
    holder: Any = nullcontext(options.work) if options.work else tempfile.TemporaryDirectory(prefix="sft_speed_")
    with holder as directory:
        work = Path(directory).resolve()
        work.mkdir(parents=True, exist_ok=True)
        options.model = cast_model(options.model, work / "inputs" / "model", options.bf16)
        report = growth(options, work) if options.growth else comparison(options, work)
    if options.json:
        options.json.write_text(json.dumps({**surroundings(options), **report}, indent=1), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="directory of a SmolLM2 model with its tokenizer")
    parser.add_argument("--peers", type=Path, help="directory of the rivals' environments, venv-NAME each")
    parser.add_argument(
        "--data", type=Path, help="JSONL of instruction, input, output (default: DIR/data/alpaca.jsonl)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender, in turn (default 3)")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of a run (default 20; 4 for --growth)")
    parser.add_argument("--warmup", type=int, default=3, help="steps before those (default 3; 1 for --growth)")
    parser.add_argument("--only", help="contenders, by commas: " + ", ".join(CONTENDERS))
    parser.add_argument("--batch", type=int, default=4, help="rows a step (default 4)")
    parser.add_argument("--length", type=int, default=512, help="longest row in tokens (default 512)")
    parser.add_argument("--threads", type=int, default=1, help="threads and cores of each run (default 1)")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 for everybody instead of float32")
    parser.add_argument("--heldout", type=int, default=32, help="rows to test the results on (default 32; 0: none)")
    parser.add_argument("--growth", action="store_true", help="sweep length and batch instead (default: ours and trl)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a run may take (default 3600)")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    parser.add_argument("--work", type=Path, help="keep outputs and logs here (default: a temporary directory)")
    options = parser.parse_args()
    options.model = options.model.resolve()
    options.model_name = options.model.name
    if not (options.model / "config.json").is_file():
        parser.error(f"{options.model} has no config.json: MODEL is a directory with a model and its tokenizer")
    options.peers = options.peers and options.peers.resolve()
    options.data = options.data or (options.peers and options.peers / "data" / "alpaca.jsonl")
    if options.data is None:
        parser.error("--data is needed without --peers")
    options.names = (options.only or ("ours,trl" if options.growth else ",".join(CONTENDERS))).split(",")
    if unknown := set(options.names) - set(CONTENDERS):
        parser.error(f"--only knows {', '.join(CONTENDERS)}; not {', '.join(sorted(unknown))}")
    return options


def comparison(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All contenders, `rounds` times in turn; prints the table."""
    tokenizer = load_tokenizer(options.model)
    rows = fit_rows(read_rows(options.data), tokenizer, options.length)
    kept = len(rows) - options.heldout
    write_rows(rows[:kept], work / "data")
    write_rows(rows[kept:], work / "heldout")
    sizes = row_sizes(rows[:kept], tokenizer)
    job = make_job(options, work, steps=options.warmup + options.steps)
    contenders, absent = present(options.names, job)
    results: Results = {name: [] for name in contenders}
    ceilings: list[dict[str, Any]] = []
    for turn in range(options.rounds):
        print(f"round {turn + 1} of {options.rounds}", flush=True)
        for name in list(contenders):
            try:
                results[name].append(measure_one(name, contenders[name], job, options, tokenizer.pad_token_id))
            except RunFailed as failure:
                absent[name] = str(failure)
                print(f"  {name}: {failure}\n{tail(work / 'runs' / name / 'output.log')}", flush=True)
                del contenders[name]
        ceilings.append(roofline(job, sizes))
    results = {name: runs for name, runs in results.items() if runs}
    losses = heldout_losses(options, work, results) if options.heldout else {}
    print("\n" + comparison_table(results, ceilings, losses, absent, sizes))
    return {
        "rows": {"count": kept, "mean_tokens": sizes.mean_length, "supervised_share": sizes.supervised_share},
        "runs": {name: [as_values(run) for run in runs] for name, runs in results.items()},
        "roofline": ceilings,
        "heldout_loss": losses,
        "not_measured": absent,
    }


def growth(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Rows filled up to a length, without padding; each point a run of each contender. Prints two tables."""
    tokenizer = load_tokenizer(options.model)
    source = read_rows(options.data)
    warmup, steps = min(options.warmup, 1), min(options.steps, 4)
    lengths = [(length, GROWTH_BATCH) for length in GROWTH_LENGTHS]
    batches = [(GROWTH_LENGTH, batch) for batch in GROWTH_BATCHES]
    measured: dict[tuple[int, int], Results] = {}
    for length, batch in dict.fromkeys([*lengths, *batches]):
        job = make_job(options, work, steps=warmup + steps, length=length, batch=batch)
        write_rows(full_rows(source, tokenizer, length, batch * (job.steps + 1)), work / "data")
        contenders, absent = present(options.names, job)
        point: Results = {}
        print(f"{batch} rows of {length} tokens", flush=True)
        for name, contender in contenders.items():
            try:
                point[name] = [measure_one(name, contender, job, options, tokenizer.pad_token_id, warmup)]
            except RunFailed as failure:
                print(f"  {name}: {failure}\n{tail(work / 'runs' / name / 'output.log')}", flush=True)
        measured[length, batch] = point
    names = [name for name in options.names if name not in absent]
    print("\n" + growth_table("tokens a row", measured, lengths, names, 0))
    print("\n" + growth_table("rows a step", measured, batches, names, 1))
    return {
        "growth": [
            {"length": length, "batch": batch, "contender": name, **as_values(runs[0])}
            for (length, batch), point in measured.items()
            for name, runs in point.items()
        ]
    }


def as_values(measured: Measurement) -> dict[str, Any]:
    """For the JSON file: everything but where the outputs lay."""
    return {name: value for name, value in dataclasses.asdict(measured).items() if name != "output"}


def load_tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def make_job(options: argparse.Namespace, work: Path, **differences: int) -> Job:
    values = {"batch": options.batch, "length": options.length, **differences}
    return Job(
        model=options.model,
        data=work / "data",
        peers=options.peers,
        work=work,
        bf16=options.bf16,
        threads=options.threads,
        **values,
    )


def present(names: list[str], job: Job) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those whose environment is there, and why the others cannot take part."""
    chosen = {name: CONTENDERS[name] for name in names}
    absent = {name: reason for name, contender in chosen.items() if (reason := contender.missing(job))}
    return {name: contender for name, contender in chosen.items() if name not in absent}, absent


def measure_one(
    name: str, contender: Contender, job: Job, options: argparse.Namespace, pad_id: int, warmup: int | None = None
) -> Measurement:
    if contender.environment == "litgpt":
        copy_for_litgpt(job)
    measured = measure(
        contender,
        job,
        job.work / "runs" / name,
        warmup=options.warmup if warmup is None else warmup,
        pad_id=pad_id,
        timeout=options.timeout,
    )
    print(
        f"  {name}: {measured.useful_per_cpu_second:.1f} useful tokens a CPU second, {measured.step_median:.2f} s a "
        f"step, {measured.peak_mb:.0f} MB, loss {measured.loss:.3f}",
        flush=True,
    )
    return measured


def roofline(job: Job, sizes: Sizes) -> dict[str, Any]:
    """The GEMM ceiling, measured now, in a process on the contenders' cores."""
    command = [sys.executable, str(HERE / "roofline.py"), str(job.model), "--threads", str(job.threads)]
    command += ["--tokens", str(round(sizes.mean_length * job.batch)), "--supervised", str(sizes.supervised_share)]
    command += ["--context", str(sizes.mean_square_over_mean), *(["--bf16"] if job.bf16 else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads), "CUDA_VISIBLE_DEVICES": ""}
    run(command, job.work, "roofline.log", environment, job.threads, 600)
    ceiling = last_json(job.work / "roofline.log")
    print(
        f"  roofline: {ceiling['tokens_per_cpu_second']:.1f} useful tokens a CPU second at "
        f"{ceiling['operations_per_cpu_second'] / 1e9:.1f} GFLOP/s",
        flush=True,
    )
    return ceiling


def heldout_losses(options: argparse.Namespace, work: Path, results: Results) -> dict[str, float | None]:
    """The loss of every contender's last result on the rows kept back, by contender; and the base model's."""
    directories = {runs[-1].output: name for name, runs in results.items()}
    command = [sys.executable, str(HERE / "heldout.py"), str(options.model), str(work / "heldout" / "messages.jsonl")]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "CUDA_VISIBLE_DEVICES": ""}
    run([*command, *directories], work, "heldout.log", environment, options.threads, options.timeout)
    return {directories.get(key, key): loss for key, loss in last_json(work / "heldout.log").items()}


def last_json(path: Path) -> Any:
    return json.loads(path.read_text().splitlines()[-1])


def comparison_table(
    results: Results,
    ceilings: list[dict[str, Any]],
    losses: dict[str, float | None],
    absent: dict[str, str],
    sizes: Sizes,
) -> str:
    """The Markdown table, medians over the rounds; ratios are paired by round."""
    columns = [
        "",
        "useful tokens a CPU s",
        "a wall s",
        "ours / it, CPU",
        "step s",
        "tokens a step",
        "labelled",
        "padding",
        "peak MB",
        "training loss",
        "held-out loss",
        "",
    ]
    lines = [
        f"{len(sizes.lengths)} rows, {sizes.mean_length:.0f} tokens on average, {sizes.supervised_share:.0%} of them "
        f"answers. Held-out loss of the base model: {number(losses.get('base'), 4)}.",
        "",
        row(columns),
        row(["---"] * len(columns)),
    ]
    ours = results.get("ours")
    for name, runs in results.items():
        cells = [
            name,
            number(median(run.useful_per_cpu_second for run in runs), 1),
            number(median(run.useful_per_wall_second for run in runs), 1),
            paired(ours, runs),
            number(median(run.step_median for run in runs), 2),
            number(fmean(run.useful_per_step for run in runs), 0),
            number(fmean(run.labelled_per_step for run in runs), 0),
            f"{fmean(run.padding_share for run in runs):.0%}",
            number(median(run.peak_mb for run in runs), 0),
            number(median(run.loss for run in runs), 3),
            number(losses.get(name), 4),
            CONTENDERS[name].remark,
        ]
        lines.append(row(cells))
    ceiling = median(measured["tokens_per_cpu_second"] for measured in ceilings)
    lines += ["", f"GEMM roofline: {ceiling:.1f} useful tokens a CPU second at 100 %."]
    if ours:
        share = median(run.useful_per_cpu_second for run in ours) / ceiling
        lines[-1] += f" Ours reaches {share:.0%} of it."
    lines += [f"Not measured: {name} ({reason})." for name, reason in absent.items()]
    return "\n".join(lines)


def paired(ours: list[Measurement] | None, theirs: list[Measurement]) -> str:
    """Our rate over theirs, round by round: median (least to most)."""
    if not ours:
        return ""
    ratios = [a.useful_per_cpu_second / b.useful_per_cpu_second for a, b in zip(ours, theirs, strict=False)]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def growth_table(
    label: str, measured: dict[tuple[int, int], Results], points: list[tuple[int, int]], names: list[str], which: int
) -> str:
    """One sweep: useful tokens per CPU second and peak MB of each contender."""
    header = [label, *(f"{name}: tokens a CPU s" for name in names), *(f"{name}: peak MB" for name in names)]
    lines = [row(header), row(["---"] * len(header))]
    for point in points:
        runs = [measured[point].get(name, [None])[0] for name in names]
        rates = [number(run and run.useful_per_cpu_second, 1) for run in runs]
        lines.append(row([str(point[which]), *rates, *(number(run and run.peak_mb, 0) for run in runs)]))
    return "\n".join(lines)


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def tail(log: Path) -> str:
    """The end of a failed run's output."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(f"    {line}" for line in lines[-LOG_LINES:])


def surroundings(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on besides the contenders; their versions are in each run's facts."""
    return {
        "date": date.today().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": options.threads,
        "model": options.model_name,
        "dtype": "bfloat16" if options.bf16 else "float32",
        "batch": options.batch,
        "length": options.length,
    }


if __name__ == "__main__":
    main()
