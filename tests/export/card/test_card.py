"""The model card: what it tells of a run, what it must never tell, and whose words it leaves alone."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from huggingface_hub import ModelCard

from hf_recipes.core.errors import UserError
from hf_recipes.export.card import write_model_card

RECIPE = {
    "model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "method": "lora",
    "learning_rate": 0.002,
    "num_train_epochs": 1.0,
    "datasets": [
        {"path": "data/orders.jsonl", "role": "domain", "license": "cc-by-4.0"},
        {"path": "HuggingFaceH4/no_robots", "role": "general"},
    ],
    "output_dir": "runs/orders",
}
DATA = {
    "sources": [
        {"source": "orders", "path": "data/orders.jsonl", "role": "domain", "read": 228, "kept": 220, "train": 198,
         "eval": 22, "train_tokens": 15465, "dropped": {"no answer": {"count": 8, "examples": []}}},
        {"source": "no_robots", "path": "HuggingFaceH4/no_robots", "role": "general", "read": 1115, "kept": 1115,
         "train": 36, "eval": 12, "train_tokens": 2490, "dropped": {}},
    ],
    "general_share": {"reached": 0.15, "by": {"rows": 0.1538, "supervised_tokens": 0.16}},
    "leakage": {"exact": {"count": 0}, "near": {"count": 2}},
}  # fmt: skip
EVALUATION = {
    "table": [["JSON that parses", "0.0%", "98.4%"], ["loss on general text", "0.805", "0.719"]],
    "tuned": {"domain": {"rows": 64, "parses": 0.984375, "fits_schema": 0.96875, "exact": None}},
    "change": {"forgetting": -0.0861},
    "settings": {"domain": "data/orders_heldout.jsonl", "dtype": "bfloat16", "decoding": "greedy"},
}
RUN = {
    "recipe": RECIPE,
    "base_model": {"name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct", "revision": "abc123"},
    "trainable_parameters": 921_600,
    "total_parameters": 135_436_608,
    "global_batch_size": 4,
    "precision": {"dtype": "float32"},
    "hardware": {"device": "cpu"},
    "versions": {"peft": "0.21.2"},
    "task": "causal_lm",
}
EVENTS = [
    {"kind": "log", "step": 10, "loss": 0.5},
    {"kind": "eval", "step": 10, "eval_loss": 0.4},
    {"kind": "alarm", "step": 11, "detector": "x", "message": "y"},
    {"kind": "log", "step": 61, "loss": 0.25},
]
MERGE = {
    "dtype": "bf16",
    "base_values": "original",
    "tensors_total": 272,
    "tensors_changed": 60,
    "adapter_tensors_consumed": 120,
    "notices": ["/home/alice/adapter holds no tokenizer"],
    "proof": {
        "tensors": {"copied": 212, "recomputed": 60, "largest_error": 0.99, "seconds": 1},
        "logits": {"positions": 243, "kl_mean": 5.5e-05, "top1_agreement": 1.0, "same_generations": 4, "prompts": 4},
    },
}


@pytest.fixture
def run(tmp_path):
    """A finished run with everything in it."""
    return make_run(tmp_path / "orders")


def make_run(path, *, run=RUN, data=DATA, evaluation=EVALUATION, events=EVENTS):
    path.mkdir()
    for name, value in (("run.json", run), ("data.json", data), ("evaluation.json", evaluation)):
        (path / name).write_text(json.dumps(value))
    (path / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n{half")
    (path / "curves.png").write_bytes(b"png")
    adapter = path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    return path


def make_form(run, name, **config):
    form = run / name
    form.mkdir()
    (form / "config.json").write_text(json.dumps(config))
    return form


@pytest.mark.parametrize(("kept", "told"), [(0.62, True), (0.999, False), (None, False)])
def test_a_merged_model_s_card_says_what_rounding_took_from_the_update(run, kept, told):
    form = make_form(run, "merged-bf16", model_type="llama")
    proof = {"tensors": {**MERGE["proof"]["tensors"], "update_kept": kept}}
    (form / "hf_recipes_merge.json").write_text(json.dumps({**MERGE, "proof": proof}))
    assert ("Rounding to bf16 keeps 62% of the update" in str(ModelCard.load(write_model_card(run, form)))) is told


def test_an_adapter_s_card_tells_the_run(run):
    card = ModelCard.load(write_model_card(run, run / "adapter"))
    assert card.data.base_model == RECIPE["model_name_or_path"]
    assert card.data.library_name == "peft" and card.data.datasets == ["HuggingFaceH4/no_robots"]
    assert card.data.to_dict()["base_model_relation"] == "adapter"
    assert {result.metric_type: result.metric_value for result in card.data.eval_results} == {
        "json_parses": 0.9844,
        "fits_schema": 0.9688,
    }
    for told in (
        "A LoRA adapter for [HuggingFaceTB/SmolLM2-135M-Instruct]",
        "| JSON that parses | 0.0% | 98.4% |",
        "64 held-out rows, greedy decoding, computed in bfloat16.",
        "did not rise: nothing was forgotten there (-0.086 nats per token)",
        "| orders | domain | cc-by-4.0 | 228 | 220 | 198 | 22 | 15,465 |",
        "15.4% of rows, 16.0% of supervised tokens",
        "Left out: 8 × no answer (orders).",
        "also stand in the training data: 2 near.",
        "| trained parameters | 921,600 of 135,436,608 (0.68%) |",
        "| last training loss | 0.25 |",
        "| alarms | 1 |",
        "![Curves of the training](curves.png)",
        "PeftModel.from_pretrained",
    ):
        assert told in card.content, told
    assert (run / "adapter" / "curves.png").read_bytes() == b"png"
    assert "A LoRA adapter for" in write_model_card(run, run).read_text()  # the run's own
    recipe = yaml.safe_load(card.content.split("```yaml\n")[1].split("```")[0])
    assert recipe["learning_rate"] == 0.002 and "output_dir" not in recipe


def test_a_merged_model_s_card_tells_the_merge(run):
    form = make_form(run, "merged-bf16")
    card = ModelCard.load(write_model_card(run, form, merge=MERGE))
    assert card.data.library_name == "transformers"
    assert card.data.to_dict()["base_model_relation"] == "finetune"
    assert "and merged in bf16" in card.content
    assert "212 tensors as in the base to the byte, 60 recomputed, largest error 0.99" in card.content
    assert "mean KL 5.5e-05, same top token 100.00%, 4 of 4 greedy answers the same" in card.content
    assert "Values of the base: original." in card.content and "alice" not in card.content
    (form / "hf_recipes_merge.json").write_text(json.dumps({**MERGE, "dtype": "fp16"}))
    assert "merged in fp16" in write_model_card(run, form).read_text()


def test_forms_stand_side_by_side(run):
    form = make_form(run, "gguf")
    (form / "model.gguf").write_bytes(b"GGUF")
    forms = [{"form": "merged-bf16", "size_mb": 269.0}, {"form": "gguf:q8_0", "size_mb": 144.8, "ms_per_token": 31.25}]
    text = write_model_card(run, form, forms=forms).read_text()
    assert "| form | size mb | ms per token |" in text and "| gguf:q8\\_0 | 144.8 | 31.25 |" in text
    assert "ollama run" in text
    assert "library_name" not in text and "- gguf" in text


@pytest.mark.parametrize("missing", ["run.json", "data.json", "evaluation.json", "events.jsonl", "curves.png", "all"])
def test_what_is_missing_is_left_out_without_litter(run, missing):
    for file in [*run.glob("*.json*"), run / "curves.png"]:
        if missing in (file.name, "all"):
            file.unlink()
    card = ModelCard.load(write_model_card(run, run / "adapter"))
    assert not re.search(r"\bNone\b|\bnull\b|More Information Needed|\bnan\b", card.content)
    assert "## Intended use" in card.content and "For the author to fill in" in card.content


HOSTILE = [
    "/home/alice/secret models/llama",
    "~/models/llama-alice",
    "C:\\Users\\alice\\llama",
    "\\\\nas\\alice\\llama",
    "file:///home/alice/llama",
    "https://alice:pw@example.org/llama",
    "see /mnt/alice/x and /Users/alice/y.json, please",
    "hf_" + "a1B2" * 8,
    "sk-ant-" + "0123456789abcdef" * 2,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_path_user_or_token_gets_out(tmp_path, hostile):
    recipe = {
        **RECIPE,
        "model_name_or_path": hostile,
        "hub_token": "plain-looking",
        "custom": {"password": "plain-looking", "note": [hostile]},
        "datasets": [{"path": hostile, "role": "domain", "license": hostile}],
        "eos_token": "<|im_end|>",
        hostile: 1,
    }
    base = {"name_or_path": hostile, "revision": hostile, "source": hostile}
    source = {**DATA["sources"][0], "source": hostile, "path": hostile, "dropped": {hostile: {"count": 1}}}
    evaluation = {**EVALUATION, "settings": {"domain": hostile, "dtype": hostile, "decoding": hostile}}
    evaluation["table"] = [[hostile, hostile, hostile]]
    run = make_run(
        tmp_path / "orders",
        run={**RUN, "recipe": recipe, "base_model": base, "versions": {hostile: hostile}, "user": "alice"},
        data={**DATA, "sources": [source], "general_share": {"reached": 1.0, "by": {hostile: 1.0}}},
        evaluation=evaluation,
    )
    form = make_form(run, "merged-bf16")
    text = write_model_card(run, form, merge={**MERGE, "dtype": hostile}, forms=[{"form": hostile}]).read_text()
    for leak in ("alice/", "alice\\", "/home", "/mnt", "/Users", "C:", "nas", "plain-looking", "pw@"):
        assert leak not in text, leak
    assert "eos_token: <|im_end|>" in text and "hub_token: (not shown)" in text
    assert "hf_a1B2" not in text and "sk-ant-0" not in text
    ModelCard(text)


def test_text_of_others_stays_text(tmp_path):
    odd = "a | b\n---\n# <script>alert(1)</script> [x](javascript:y) ```"
    source = {**DATA["sources"][0], "source": odd, "role": odd}
    run = make_run(tmp_path / "run", data={"sources": [source, "no dict"], "leakage": []}, run={**RUN, "recipe": odd})
    text = write_model_card(run, run / "adapter").read_text()
    assert "<script>" not in text and "\n# <" not in text and not re.search(r"(?<!\\)\]\(javascript", text)
    row = next(line for line in text.splitlines() if line.startswith("| a") and "alert(1)" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 8


def test_files_of_odd_content_do_not_stop_the_card(run):
    for name in ("run.json", "data.json", "evaluation.json"):
        (run / name).write_text("[1, 2")
    (run / "evaluation.json").write_text(
        json.dumps({"table": [[1], "x"], "tuned": [], "change": {"forgetting": "nan"}})
    )
    assert "# orders" in write_model_card(run, run / "adapter").read_text()


def test_the_base_s_licence_is_read_from_its_card(tmp_path):
    base = tmp_path / "llama"
    base.mkdir()
    (base / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Base\nlicense: other\n")
    run = make_run(
        tmp_path / "run",
        run={**RUN, "recipe": {**RECIPE, "model_name_or_path": str(base)}, "base_model": {"name_or_path": str(base)}},
    )
    card = ModelCard.load(write_model_card(run, run / "adapter"))
    assert card.data.license == "apache-2.0" and card.data.base_model is None
    assert "`llama`" in card.content and "licence of the base (apache-2.0)" in card.content


def test_templates_are_replaced_and_words_of_people_are_kept(run):
    card = run / "adapter" / "README.md"
    card.write_text("---\nlibrary_name: peft\n---\n" + "- **x:** [More Information Needed]\n" * 30)
    assert write_model_card(run, run / "adapter") == card
    assert write_model_card(run, run / "adapter") == card  # ours, as it was written
    filled = card.read_text().replace("*For the author to fill in:", "For ordering pens.")
    card.write_text(filled)
    beside = write_model_card(run, run / "adapter")
    assert beside.name == "README.hf_recipes.md" and card.read_text() == filled
    card.write_text("# My own\n")
    assert write_model_card(run, run / "adapter").name == "README.hf_recipes.md" and card.read_text() == "# My own\n"


def test_a_card_of_nothing_is_refused(run, tmp_path):
    with pytest.raises(UserError, match="nothing to write a card of"):
        write_model_card(run, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("run", "data"),
    [
        ({**RUN, "base_model": {"name_or_path": "x" * 5000}}, DATA),  # longer than file systems allow
        (RUN, {**DATA, "general_share": {"reached": 0.15, "by": {"rows": None, "tokens": "many"}}}),
    ],
)
def test_odd_values_deep_in_the_run_s_files_do_not_stop_the_card(tmp_path, run, data):
    directory = make_run(tmp_path / "run", run=run, data=data)
    assert "## Training data" in write_model_card(directory, directory).read_text()
