"""Preparing a file of conversations for training: hf_recipes against TRL's `SFTTrainer` and LLaMA-Factory.

    python benchmarks/preparation.py MODEL [--rows 20000] [--processes 2] [--rounds 3]
        [--llamafactory PYTHON [--llamafactory-pythonpath DIR]]

From a JSONL file to a tokenised, masked set on disk, each contender in a process of its own, alternating. Imports and
the making of the model that TRL asks for are not counted. Ours also finds duplicates and writes the account.
`--memory 10000,100000,1000000` instead measures ours alone on Parquet files of so many rows: time and peak memory.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

MAX_LENGTH = 1024
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{{ '\\n' }}{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory with a fast tokenizer")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llamafactory", metavar="PYTHON", help="the interpreter of an environment with LLaMA-Factory")
    parser.add_argument("--llamafactory-pythonpath", default="", metavar="DIR")
    parser.add_argument("--memory", metavar="ROWS,…", help="measure time and peak memory of ours on so many rows")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(measure(options)))
    elif options.memory:
        measure_memory(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    pythons = {"hf_recipes": sys.executable, "trl": sys.executable}
    if options.llamafactory:
        pythons["llamafactory"] = options.llamafactory
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "rows.jsonl"
        with open(file, "w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in docstring_rows(options.rows))
        results: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
        for _ in range(options.rounds):
            for name, python in pythons.items():
                results[name].append(run_contender(name, python, file, options))
    for name, runs in results.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        rows, tokens = runs[0]["rows"], runs[0]["tokens"]
        print(
            f"{name:13} {seconds:7.1f} s  {rows / seconds:7.0f} rows/s  {tokens / seconds:9.0f} tokens/s  "
            f"({rows:.0f} rows, {tokens:.0f} tokens, {runs[0]['supervised_tokens']:.0f} learned)"
        )
    for name in list(pythons)[1:]:
        pairs = zip(results["hf_recipes"], results[name], strict=True)
        ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in pairs]
        print(f"{name} / hf_recipes: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


def measure_memory(options: argparse.Namespace) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for count in map(int, options.memory.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "rows.parquet"
            rows = docstring_rows(count)
            with pq.ParquetWriter(file, pa.Table.from_pylist([next(docstring_rows(1))]).schema) as writer:
                while some := list(islice(rows, 10_000)):
                    writer.write_table(pa.Table.from_pylist(some))
            print(count, "rows:", json.dumps(run_contender("hf_recipes", sys.executable, file, options)), flush=True)


def run_contender(name: str, python: str, file: Path, options: argparse.Namespace) -> dict[str, float]:
    command = [python, __file__, options.model, "--contender", name, "--file", str(file)]
    command += ["--processes", str(options.processes)]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"HF_DATASETS_CACHE": cache, "BENCHMARK_CACHE": cache, "HF_HUB_OFFLINE": "1"}
        if name == "llamafactory":
            environment["PYTHONPATH"] = options.llamafactory_pythonpath
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        sys.exit(f"{name} failed:\n{finished.stderr[-3000:]}")
    return json.loads(finished.stdout.splitlines()[-1])


def measure(options: argparse.Namespace) -> dict[str, float]:
    prepare = CONTENDERS[options.contender](options)
    start = time.perf_counter()
    dataset = prepare()
    seconds = time.perf_counter() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # before the set is read below
    workers_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    tokens = supervised = 0
    for batch in dataset.iter(1000):
        tokens += sum(map(len, batch["input_ids"]))
        key = "labels" if "labels" in batch else "assistant_masks"
        unlearned = -100 if key == "labels" else 0
        supervised += sum(sum(value != unlearned for value in row) for row in batch[key])
    return {
        "seconds": seconds,
        "rows": len(dataset),
        "tokens": tokens,
        "supervised_tokens": supervised,
        "peak_mb": peak_mb,
        "largest_worker_mb": workers_mb,
    }


def hf_recipes(options: argparse.Namespace) -> Callable[[], Any]:
    import datasets  # noqa: F401 (the others have imported it, too, when the clock starts)

    from hf_recipes import prepare_data

    tokenizer = load_tokenizer(options.model)
    return lambda: (
        prepare_data(
            [{"path": options.file}],
            tokenizer,
            max_length=MAX_LENGTH,
            eval_share=0,
            num_proc=options.processes,
            cache_dir=os.environ["BENCHMARK_CACHE"],
        ).train
    )


def trl(options: argparse.Namespace) -> Callable[[], Any]:
    from datasets import load_dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = load_tokenizer(options.model)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **size))
    arguments = SFTConfig(
        output_dir=os.environ["BENCHMARK_CACHE"],
        use_cpu=True,
        bf16=False,
        max_length=MAX_LENGTH,
        assistant_only_loss=True,
        dataset_num_proc=options.processes,
        report_to="none",
    )

    def prepare() -> Any:
        rows = load_dataset("json", data_files=options.file, split="train")
        return SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer).train_dataset

    return prepare


def llamafactory(options: argparse.Namespace) -> Callable[[], Any]:
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer as load

    directory = Path(options.file).parent
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    entry = {
        "file_name": Path(options.file).name,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": tags,
    }
    (directory / "dataset_info.json").write_text(json.dumps({"rows": entry}))
    model_args, data_args, training_args, _, _ = get_train_args(
        {
            "model_name_or_path": options.model,
            "template": "chatml",
            "stage": "sft",
            "do_train": True,
            "finetuning_type": "lora",
            "dataset_dir": str(directory),
            "dataset": "rows",
            "cutoff_len": MAX_LENGTH,
            "preprocessing_num_workers": options.processes,
            "overwrite_cache": True,
            "output_dir": os.environ["BENCHMARK_CACHE"],
            "use_cpu": True,
            "report_to": "none",
        }
    )
    module = load(model_args)
    template = get_template_and_fix_tokenizer(module["tokenizer"], data_args)
    return lambda: get_dataset(template, model_args, data_args, training_args, stage="sft", **module)["train_dataset"]


CONTENDERS: dict[str, Callable[[argparse.Namespace], Callable[[], Any]]] = {
    "hf_recipes": hf_recipes,
    "trl": trl,
    "llamafactory": llamafactory,
}


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = CHATML
    return tokenizer


def docstring_rows(count: int) -> Iterator[dict[str, Any]]:
    """Questions about Python's standard library, answered by its docstrings; numbered, so that no two are equal."""
    documented = []
    for module in sorted(module.name for module in pkgutil.iter_modules() if module.name in sys.stdlib_module_names):
        if module.startswith(("_", "antigravity", "this", "idlelib", "turtledemo")):
            continue
        try:
            members = inspect.getmembers(importlib.import_module(module))
        except Exception:  # modules of other platforms
            continue
        for name, member in members:
            text = inspect.getdoc(member) if callable(member) else None
            if text and len(text) > 80:
                documented.append((f"{module}.{name}", text))
    for number in range(count):
        name, text = documented[number % len(documented)]
        lap = number // len(documented)
        question = f"({lap}) What does {name} do in Python?"
        answer = f"{text}\n\nThat was answer {number} about {name}."
        yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


if __name__ == "__main__":
    main()
