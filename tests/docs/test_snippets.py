"""Every Python snippet of README and docs: it is Python, its imports exist, and it runs where it stands.

A snippet runs in a directory that holds what its page speaks of, with the names that the page takes for granted.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What no machine of a test has; their imports are checked all the same.
NOT_RUN = {
    "docs/prepare.md": "Ray and Spark",
    "docs/nan.md": "a run that broke",
    "docs/serving.md": "vLLM and two runs",
    "docs/evaluate.md": "two finished runs",
    "docs/doctor.md": "a run that broke",
    "docs/preemption.md": "ends the process where the job was asked to stop",
    "docs/trackers.md": "Trackio",
    "docs/rating.md": "what two people rated",
}


@dataclass(frozen=True)
class Snippet:
    page: str
    number: int
    code: str


def _snippets() -> Iterator[Snippet]:
    # The Chinese pages have the same snippets, byte for byte, which `test_chinese_pages` holds.
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, found in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8")), start=1):
            yield Snippet(page.relative_to(ROOT).as_posix(), number, found[1])


SNIPPETS = list(_snippets())


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda each: f"{each.page}-{each.number}")
def test_it_is_python_and_what_it_imports_exists(snippet: Snippet) -> None:
    for node in ast.walk(ast.parse(snippet.code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hf_recipes"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({each.page for each in SNIPPETS} - set(NOT_RUN)))
def test_it_runs(page: str, setting: dict[str, Any]) -> None:
    if page == "docs/cleaning.md":
        setting["dataset"] = setting["maths"]  # texts, before they are tokens
    if page == "docs/formats.md":
        setting["rows"] = [{"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}] * 2  # IFEval's
    for snippet in SNIPPETS:
        if snippet.page == page:
            exec(compile(snippet.code, f"{page}, snippet {snippet.number}", "exec"), setting)


@pytest.fixture
def setting(tokenizer, four_bit_model_dir, tmp_path, monkeypatch) -> dict[str, Any]:
    """The names and files that the pages take for granted."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    from hf_recipes import SupervisedCollator, prepare_data

    monkeypatch.chdir(tmp_path)
    _write_files(four_bit_model_dir)
    rows = prepare_data([{"path": "rows.jsonl"}], tokenizer, max_length=64, eval_share=0).train
    model = AutoModelForCausalLM.from_pretrained(four_bit_model_dir)
    collator = SupervisedCollator(pad_token_id=tokenizer.pad_token_id)
    make_trainer = _trainer_maker(model, rows, collator)
    texts = [f"<b>row</b> {number} of some length" for number in range(30)]
    return {
        "model": model,
        "tokenizer": tokenizer,
        "dataset": rows,
        "rows": rows,
        "collator": collator,
        "args": _arguments(),
        "trainer": make_trainer(),
        "Trainer": make_trainer,
        "texts": texts,
        "token_counts": [10, 11, 12, 300],
        "class_numbers": [0, 0, 0, 1],
        "maths": Dataset.from_dict({"text": [f"sum {number}" for number in range(1000)]}),
        "answers": ['{"item": "pen", "count": 2}', "no"],
        "references": ['{"item": "pen", "count": 3}', '{"item": "cup", "count": 1}'],
    }


def _write_files(model: Path) -> None:
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"say {number}"},
                {"role": "assistant", "content": f"here is {number}"},
            ]
        }
        for number in range(20)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in chats)
    for name in ("rows.jsonl", "orders.jsonl"):
        Path(name).write_text(lines, encoding="utf-8")
    Path("path-or-name").symlink_to(model)
    Path("path/to").mkdir(parents=True)
    Path("path/to/config.json").write_bytes((model / "config.json").read_bytes())
    Path("order.schema.json").write_text('{"type": "object", "required": ["item"]}', encoding="utf-8")
    _write_adapter(model, Path("adapter"))
    _write_run(model, Path("runs/orders"))


def _write_adapter(model: Path, directory: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model)
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(directory)


def _write_run(model: Path, directory: Path) -> None:
    """What a finished run leaves to be used: an adapter and a merged model, each with tokenizer and end tokens."""
    _write_adapter(model, directory / "adapter")
    shutil.copytree(model, directory / "merged-bf16")
    for file in (*model.glob("*token*"), *model.glob("*template*"), *model.glob("generation_config.json")):
        shutil.copy(file, directory / "adapter")


def _arguments() -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir="output_dir", max_steps=2, per_device_train_batch_size=2, logging_steps=1, report_to="none"
    )


def _trainer_maker(model: Any, rows: Any, collator: Any) -> Callable[..., Any]:
    """`Trainer(..., callbacks=[…])` as the pages write it: what they leave out is filled in."""
    import transformers

    def make(*_: Any, callbacks: Any = (), **__: Any) -> Any:
        return transformers.Trainer(
            model=model, args=_arguments(), train_dataset=rows, data_collator=collator, callbacks=list(callbacks)
        )

    return make
