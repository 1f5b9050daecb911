"""Does the overfit test find broken set-ups of a real model, and let healthy ones pass, in seconds?

    python benchmarks/overfit_trials.py [--data DIR] [--seconds N] [--only NAME …] [--markdown]

SmolLM2-135M-Instruct and the shipped recipe `smollm2/sft_lora` with one thing changed at a time. `--data` names a
directory with `alpaca_en_demo.json`, `alpaca_zh_demo.json` (instruction, input, output) and `c4_demo.jsonl` (text);
without it the rows are the shipped ones alone. Each trial prints one line of JSON; --markdown reads such lines from
standard input and prints the table. Exit code 1 when a fault was missed or a healthy set-up failed.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import gc
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ALPACA = (
    "{% for message in messages %}{{ '### ' + message['role'] + ':\\n' + message['content'] + '<|endoftext|>\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### assistant:\\n' }}{% endif %}"
)
LLAMA3 = "<|start_header_id|>user<|end_header_id|>\n\n{q}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{a}"


@dataclass(frozen=True)
class Trial:
    """A set-up: recipe keys, rows to write first, and what is done to the built run; `fault` names what the sentence
    must hold, or is empty for a healthy one."""

    keys: tuple[str, ...] = ()
    fault: str = ""
    learning_rate: float | None = None
    rows: Callable[[Path], list[dict[str, Any]]] | None = None
    break_run: Callable[[Any], Any] | None = None
    needs_data: bool = False


def orders() -> list[dict[str, Any]]:
    from hf_recipes.recipe.shipped import recipes_root

    return [json.loads(line) for line in (recipes_root() / "data" / "orders.jsonl").read_text("utf-8").splitlines()]


def turns(row: dict[str, Any]) -> tuple[str, str]:
    """Question and answer of a row of messages or of Alpaca's columns."""
    if "messages" in row:
        return row["messages"][-2]["content"], row["messages"][-1]["content"]
    return "\n".join(filter(None, (row["instruction"], row["input"]))), row["output"]


def exchange(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def alpaca(language: str) -> Callable[[Path], list[dict[str, Any]]]:
    return lambda data: json.loads((data / f"alpaca_{language}_demo.json").read_text("utf-8"))[:300]


def long_text(data: Path) -> list[dict[str, Any]]:
    lines = (data / "c4_demo.jsonl").read_text("utf-8").splitlines()
    return sorted(map(json.loads, lines), key=lambda row: -len(row["text"]))[:100]


def one_token(data: Path) -> list[dict[str, Any]]:
    """Is the number even: prompts without repetition, one token of answer."""
    return [exchange(f"Is {number} even?", "Yes" if number % 2 == 0 else "No") for number in range(300)]


def shuffled(rows: Callable[[Path], list[dict[str, Any]]]) -> Callable[[Path], list[dict[str, Any]]]:
    def apart(data: Path) -> list[dict[str, Any]]:
        questions, answers = zip(*map(turns, rows(data)), strict=True)
        return [exchange(*pair) for pair in zip(questions, random.Random(0).sample(answers, len(answers)), strict=True)]

    return apart


def contradicting(data: Path) -> list[dict[str, Any]]:
    return [exchange(f"Is ticket {number // 3} urgent?", ("Yes", "No", "Maybe")[number % 3]) for number in range(90)]


def of_llama(data: Path) -> list[dict[str, Any]]:
    return [{"text": LLAMA3.format(q=question, a=answer)} for question, answer in map(turns, orders())]


def with_rows(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Any], Any]:
    """Change every prepared row."""

    def apply(built: Any) -> Any:
        rows = [{name: list(map(int, row[name])) for name in ("input_ids", "labels")} for row in built.data.train]
        return replace(built, data=replace(built.data, train=[change(row) for row in rows]))

    return apply


def shift(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "labels": [*row["labels"][1:], -100]}


def random_labels(row: dict[str, Any]) -> dict[str, Any]:
    draw = random.Random(sum(row["input_ids"]))
    return {**row, "labels": [each if each == -100 else draw.randrange(1000, 40000) for each in row["labels"]]}


def masked(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "labels": [-100] * len(row["labels"])}


def padding(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "input_ids": [2] * len(row["labels"]), "labels": [2] * len(row["labels"])}


def frozen(built: Any) -> Any:
    built.trainer.model.requires_grad_(False)
    return built


def disabled(built: Any) -> Any:
    built.trainer.model.base_model.disable_adapter_layers()
    for name, parameter in built.trainer.model.named_parameters():
        parameter.requires_grad = "lora_" in name
    return built


def overflowing(built: Any) -> Any:
    model = built.trainer.model.half()
    mlp = model.get_base_model().model.layers[10].mlp  # each weight stays below 65,504, their product does not
    mlp.up_proj.weight.data.mul_(100)
    mlp.down_proj.weight.data.mul_(1000)
    return built


def nan_weight(built: Any) -> Any:
    built.trainer.model.get_base_model().model.layers[3].mlp.up_proj.weight.data[0, 0] = float("nan")
    return built


# Those of one set of keys stand together, so that it is loaded once; what breaks the model for good comes last.
TRIALS: dict[str, Trial] = {
    "LoRA, r 16": Trial(),
    "LoRA at its default rate": Trial(learning_rate=2e-4),
    "learning rate 1e-8": Trial(learning_rate=1e-8, fault="1e-08 is too small"),
    "learning rate 10": Trial(learning_rate=10.0, fault="10 is too large"),
    "shifted labels": Trial(fault="labels are shifted", break_run=with_rows(shift)),
    "labels random against inputs": Trial(fault="do not follow the inputs", break_run=with_rows(random_labels)),
    "all labels masked": Trial(fault="no row|none of", break_run=with_rows(masked)),
    "all-pad batches": Trial(fault="rows are padding", break_run=with_rows(padding)),
    "frozen adapter": Trial(fault="no parameter requires", break_run=frozen),
    "disabled adapter": Trial(fault="gradients of all", break_run=disabled),
    "fp16 overflow": Trial(fault="float16 ends", break_run=overflowing),
    "damaged weight": Trial(fault="weights are damaged", break_run=nan_weight),
    "full": Trial(("--method", "full"), learning_rate=2e-5),
    "learning rate 1e-8, full": Trial(("--method", "full"), learning_rate=1e-8, fault="1e-08"),
    "LoRA, r 4": Trial(("--lora_r", "4", "--lora_alpha", "8")),
    "DoRA": Trial(("--method", "dora")),
    "QLoRA": Trial(("--method", "qlora")),
    "partial, last 4 layers": Trial(("--method", "partial", "--trainable_layers", "4"), learning_rate=2e-5),
    "bottleneck adapter": Trial(("--method", "adapter"), learning_rate=2e-4),
    "prefix": Trial(("--method", "prefix"), learning_rate=3e-3),
    "IA3": Trial(("--method", "ia3"), learning_rate=3e-3),
    "one-token answers": Trial(rows=one_token),
    "long rows of plain text": Trial(("--max_length", "1024"), rows=long_text, needs_data=True),
    "English instructions": Trial(rows=alpaca("en"), needs_data=True),
    "Chinese instructions": Trial(rows=alpaca("zh"), needs_data=True),
    "shuffled answers, orders": Trial(fault="do not belong", rows=shuffled(lambda data: orders())),
    "shuffled answers, English": Trial(fault="do not belong", rows=shuffled(alpaca("en")), needs_data=True),
    "shuffled answers, Chinese": Trial(fault="do not belong", rows=shuffled(alpaca("zh")), needs_data=True),
    "prompts with several answers": Trial(fault="another answer too", rows=contradicting),
    "template of another model, as text": Trial(fault="template is another model's", rows=of_llama),
    "template of another model, by file": Trial(("--chat_template_path", "TEMPLATE"), fault="template is not the one"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="directory with the three files of rows")
    parser.add_argument("--seconds", type=float, default=30.0, help="the test's budget (default: 30)")
    parser.add_argument("--only", nargs="+", choices=TRIALS, metavar="NAME", help="these trials")
    parser.add_argument("--markdown", action="store_true", help="print the table of the lines on standard input")
    options = parser.parse_args()
    if options.markdown:
        return show(map(json.loads, sys.stdin))
    bad = 0
    for name in options.only or TRIALS:
        if TRIALS[name].needs_data and options.data is None:
            print(f"left out without --data: {name}", file=sys.stderr)
            continue
        outcome = attempt(name, TRIALS[name], options)
        bad += not outcome["right"]
        print(json.dumps(outcome, ensure_ascii=False), flush=True)
    return 1 if bad else 0


def attempt(name: str, trial: Trial, options: argparse.Namespace) -> dict[str, Any]:
    """Build the run, break it, test it; also hold the parameters against what they were."""
    from hf_recipes.training.overfit.before_run import run_overfit_test

    built = build(trial.keys, trial.rows, options.data)
    built.trainer.args.learning_rate = trial.learning_rate or 2e-3
    if trial.break_run is not None:
        built = trial.break_run(built)
    before = {name: value.detach().clone() for name, value in built.trainer.model.named_parameters()}
    wall, cpu = time.perf_counter(), time.process_time()
    result = run_overfit_test(built, 100, options.seconds)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    same = all(_same_bits(value, before[name]) for name, value in built.trainer.model.named_parameters())
    found = any(words in str(result) for words in trial.fault.split("|")) and not result.ok
    return {
        "name": name,
        "fault": trial.fault,
        "right": same and (found if trial.fault else result.ok),
        "status": result.verdict.status,
        "put_back": same,
        "seconds": wall,
        "cpu_seconds": cpu,
        "sentence": str(result),
        "details": result.details(),
    }


@functools.lru_cache(maxsize=1)
def build(keys: tuple[str, ...], rows: Callable[[Path], list[dict[str, Any]]] | None, data: Path | None) -> Any:
    """A run up to its first step; trials that break the model stand last among those that share one."""
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.build_run import build_run
    from hf_recipes.training.setup import set_up

    gc.collect()  # the run before this one, whose parts know each other
    scratch = tempfile.mkdtemp(prefix="overfit_trials_")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    (Path(scratch) / "template.jinja").write_text(ALPACA)
    arguments = [f"{scratch}/template.jinja" if key == "TEMPLATE" else key for key in keys]
    if rows is not None:
        file = Path(scratch) / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows(data or Path())), "utf-8")
        arguments += ["--datasets", json.dumps([{"path": str(file)}])]
    return build_run(set_up(load_recipe("smollm2/sft_lora", ["--output_dir", f"{scratch}/run", *arguments])))


def _same_bits(one: Any, other: Any) -> bool:
    import torch

    return torch.equal(one.detach().view(torch.uint8), other.view(torch.uint8))  # a NaN is itself


def show(outcomes: Iterator[dict[str, Any]]) -> int:
    """The table; the last outcome of a name counts."""
    last = {outcome["name"]: outcome for outcome in outcomes}
    print("| set-up | wanted | verdict | seconds | CPU seconds | what it said |")
    print("| --- | --- | --- | ---: | ---: | --- |")
    for outcome in (last[name] for name in TRIALS if name in last):
        wanted = "failed" if outcome["fault"] else "passed"
        verdict = outcome["status"] + ("" if outcome["right"] else " ✗")
        numbers = f"{outcome['seconds']:.1f} | {outcome['cpu_seconds']:.1f}"
        print(f"| {outcome['name']} | {wanted} | {verdict} | {numbers} | {outcome['sentence'].split(': ', 1)[1]} |")
    return 0 if all(outcome["right"] for outcome in last.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
