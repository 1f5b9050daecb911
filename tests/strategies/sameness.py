"""Whether a strategy trains the model that one process trains: runs of a tiny recipe, and what they are compared by.

Import as `from sameness import …`; the process of `launched_ranks` calls `model_facts` and `make_models` too.
"""

from __future__ import annotations

import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import yaml

GLOBAL_BATCH, MICRO = 8, 2
STEPS, SAVED_EVERY = 30, 10
PROMPTS = ("Say number 3", "Say number 40")


@dataclass(frozen=True)
class Cell:
    """A strategy on so many ranks, and what is trained by it."""

    strategy: str
    method: str
    ranks: int = 2
    nodes: int = 1
    tied: bool = True
    tensor: int | None = None

    @property
    def name(self):
        return "-".join(
            map(str, (self.strategy, self.method, self.ranks, self.nodes, "tied" if self.tied else "untied"))
        )

    @property
    def data_parallel(self):
        return self.ranks // (self.tensor or (self.ranks // self.nodes if self.strategy in ("tp", "cp") else 1))


class Workplace:
    """A folder with models, rows and a recipe, and the runs in it."""

    def __init__(self, folder, ranks, steps=STEPS, saved_every=SAVED_EVERY, row_count=64):
        self.folder, self.ranks = Path(folder), ranks
        self.steps, self.saved_every = steps, saved_every
        self._alone = {}
        if not (self.folder / "untied").is_dir():
            ranks.call("sameness:make_models", str(self.folder))
        rows = [
            {"instruction": f"Say number {i}", "output": f"The number is {i * 7 % 10}, {'so ' * (i % 5)}well."}
            for i in range(row_count)
        ]
        write_lines(self.folder / "rows.jsonl", rows)
        self.recipe = self.folder / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump(self.values()))

    def values(self):
        """What every run here has in common: fp32, no dropout, each step logged."""
        return {
            "datasets": [{"path": str(self.folder / "rows.jsonl")}],
            "eval_share": 0.125,
            "plan_check": False,
            "bf16": False,
            "dtype": "fp32",
            "lora_dropout": 0.0,
            "lora_r": 4,
            "learning_rate": 5e-3,
            "max_steps": self.steps,
            "overfit_check": "off",
            "logging_steps": 1,
            "save_steps": self.saved_every,
            "eval_steps": self.saved_every,
            "per_device_train_batch_size": MICRO,
            "per_device_eval_batch_size": 2,
            "disable_tqdm": True,
            "trial_save": False,
        }

    def run(self, cell, name, *keys, hooks=()):
        """Start a run of a cell, or go on with it; exit codes of its launchers. Without `cell.strategy` on one rank."""
        run = self.folder / name
        run.parent.mkdir(parents=True, exist_ok=True)
        accumulated = GLOBAL_BATCH // MICRO // cell.data_parallel
        arguments = ["--config", str(self.recipe), "--output_dir", str(run), "--method", cell.method]
        arguments += ["--model_name_or_path", str(self.folder / ("tied" if cell.tied else "untied"))]
        arguments += ["--gradient_accumulation_steps", str(accumulated), *keys]
        if cell.strategy == "alone":
            lines = [["alone", *arguments]]
        else:
            arguments += ["--strategy", cell.strategy]
            arguments += ["--tensor_parallel_size", str(cell.tensor)] if cell.tensor else []
            lines = launch_words(cell, run, arguments)
        return self.ranks.run(lines, self.log(name), hooks=hooks, devices=cell.strategy in ("tp", "cp"))

    def log(self, name):
        return self.folder / f"{name}.log"

    def finished(self, cell, name, *keys, hooks=()):
        """A run that must end well; its directory."""
        codes = self.run(cell, name, *keys, hooks=hooks)
        assert not any(codes), f"{name}: {codes}: {self.log(name).read_text()[-4000:]}"
        return self.folder / name

    def alone(self, method, tied=True):
        """The run of one process, made once."""
        cell = Cell("alone", method, ranks=1, tied=tied)
        if cell.name not in self._alone:
            done = self.folder / cell.name
            if not (done / "status.json").is_file():
                self.finished(cell, cell.name)
            self._alone[cell.name] = done
        return self._alone[cell.name]

    def facts(self, run):
        """See `model_facts`; kept beside the run."""
        kept = self.folder / f"{run.name}.facts.json"
        if not kept.is_file():
            kept.write_text(json.dumps(self.ranks.call("sameness:model_facts", str(run))))
        return json.loads(kept.read_text())


def launch_words(cell, run, arguments):
    """The words after ``accelerate launch`` for each node: on one node those of `hf-recipes sft`."""
    from hf_recipes.plan.strategy.accelerate_config import accelerate_config
    from hf_recipes.plan.strategy.names import Sizes, layout_of
    from hf_recipes.training.launch import launch_command
    from hf_recipes.training.strategy_file import strategy_file

    if cell.nodes == 1:
        file = strategy_file(cell.strategy, cell.ranks, run, Sizes(cell.tensor))
        return [launch_command("hf_recipes.sft", arguments, cell.ranks, file)[3:]]
    file = run.parent / f"{run.name}.accelerate.yaml"
    file.write_text(yaml.safe_dump(accelerate_config(layout_of(cell.strategy, cell.ranks, cell.nodes))))
    place = ["--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    head = ["--config_file", str(file), *place]
    return [[*head, "--machine_rank", str(node), "-m", "hf_recipes.sft", *arguments] for node in range(cell.nodes)]


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def write_lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def events_of(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def curves(run):
    """Step → loss, gradient norm and evaluation loss, of the newest attempt that logged the step."""
    found = {"loss": {}, "grad_norm": {}, "eval_loss": {}}
    for event in events_of(run):
        for name, values in found.items():
            if name in event and event["kind"] in ("log", "eval"):
                values[event["step"]] = event[name]
    return found


def apart(found, expected):
    """Largest and mean difference of two curves, which must be of the same steps."""
    assert sorted(found) == sorted(expected), (sorted(found), sorted(expected))
    assert expected
    differences = [abs(found[step] - expected[step]) for step in expected]
    return {"max": max(differences), "mean": sum(differences) / len(differences)}


def without_progress(run, copy, step):
    """A copy of a run as it was once `step` had been saved."""
    skipped = shutil.ignore_patterns("adapter", "model", "status.json", "report.html", "curves.png")
    shutil.copytree(run, copy, ignore=skipped)
    for checkpoint in copy.glob("checkpoint-*"):
        if int(checkpoint.name.split("-")[1]) > step:
            shutil.rmtree(checkpoint)


def result_apart(found, expected):
    """The largest difference of a tensor of two results, and whether names and shapes are the same."""
    from safetensors.torch import load_file

    tensors = [{}, {}]
    for held, run in zip(tensors, (found, expected), strict=True):
        for file in result_of(Path(run)).glob("*.safetensors"):
            held.update(load_file(file))
    mine, theirs = tensors
    assert theirs
    shapes = [{name: tuple(each.shape) for name, each in held.items()} for held in tensors]
    if shapes[0] != shapes[1]:
        return {"same_shapes": False, "max": None}
    return {"same_shapes": True, "max": max(float((mine[name] - theirs[name]).abs().max()) for name in theirs)}


def result_of(run):
    return run / "model" if (run / "model").is_dir() else run / "adapter"


def model_facts(run):
    """Of a finished run: whether its result verifies by every level, and what the (merged) model answers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hf_recipes.checkpoints.verification.verify import verify_checkpoint
    from hf_recipes.export.merge import merge_adapter

    run = Path(run)
    result = result_of(run)
    reports = {level: verify_checkpoint(result, level) for level in ("content", "reload")}
    if result.name == "adapter":
        merge_adapter(result, output=run / "merged", dtype="fp32", overwrite=True)
        result = run / "merged"
    model = AutoModelForCausalLM.from_pretrained(result, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(result)
    answers = []
    for prompt in PROMPTS:
        chat = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        answers.append(model.generate(**ids, max_new_tokens=12, do_sample=False)[0].tolist())
    problems = {level: [str(each) for each in report.problems] for level, report in reports.items()}
    return {"problems": problems, "answers": answers}


def make_models(folder):
    """A tiny Llama with tied embeddings and one without, with a tokenizer."""
    from tiny_models import make_tiny_llama
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({name: place for place, name in enumerate([*special, *letters])}, []))
    raw.add_special_tokens(special)
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=special[1], eos_token=special[2], pad_token=special[2]
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
        "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    for name in ("tied", "untied"):
        wide = {"hidden_size": 64, "intermediate_size": 128}  # in blocks of 64, as four bits need it (`core.four_bits`)
        make_tiny_llama(len(tokenizer), tied=name == "tied", **wide).save_pretrained(Path(folder) / name)
        tokenizer.save_pretrained(Path(folder) / name)
