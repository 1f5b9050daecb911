"""Real tasks of lm-evaluation-harness on a tiny model; where the package is installed."""

from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.trials

CHOICE = """
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]
"""
ROWS = [
    {"question": "q w e", "choices": ["a", "b c d", "e f"], "gold": 0},
    {"question": "r t", "choices": ["x y", "z"], "gold": 1},
    {"question": "u i o p", "choices": ["k", "l m n o p", "b"], "gold": 2},
]


@pytest.fixture(scope="module")
def model_and_tokenizer():
    from tiny_models import make_tiny_llama
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {chr(ord("a") + number): number + 3 for number in range(26)}
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, **letters}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>", pad_token="</s>")
    return make_tiny_llama(64).eval(), tokenizer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "mine.yaml").write_text(CHOICE)
    return tmp_path


def likelihoods(model, tokenizer, row):
    """The log-likelihood of each choice after the question and a space, one by one."""
    import torch

    prompt = tokenizer(row["question"]).input_ids
    found = []
    for choice in row["choices"]:
        ids = torch.tensor([prompt + tokenizer(choice).input_ids])
        with torch.no_grad():
            logs = model(ids).logits.log_softmax(-1)
        found.append(sum(logs[0, place - 1, ids[0, place]].item() for place in range(len(prompt), ids.shape[1])))
    return found


def test_a_local_choice_task_gives_our_own_figures(folder, model_and_tokenizer):
    from hf_recipes.evaluation.harness import evaluate_tasks
    from hf_recipes.evaluation.judges.choices import judge_choice

    model, tokenizer = model_and_tokenizer
    model.train()
    result = evaluate_tasks(model, tokenizer, [folder / "mine.yaml"], batch_size=2)["mine"]
    assert model.training
    model.eval()
    ours = [
        judge_choice(likelihoods(model, tokenizer, row), [len(each) for each in row["choices"]], row["gold"])
        for row in ROWS
    ]
    assert result.samples["acc"] == [row["accuracy"] for row in ours]
    assert result.samples["acc_bytes"] == result.samples["acc_norm"] == [row["accuracy_norm"] for row in ours]
    assert result.metrics["acc"] == pytest.approx(sum(result.samples["acc"]) / 3)


def test_generation_with_stops_and_a_limit(folder, model_and_tokenizer):
    from hf_recipes.evaluation.harness import run_tasks

    task = CHOICE[: CHOICE.index("output_type")].replace("mine", "written") + (
        "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{choices[gold]}}'\n"
        "generation_kwargs: {until: ['z'], max_gen_toks: 4}\nmetric_list: [{metric: exact_match}]\n"
    )
    (folder / "written.yaml").write_text(task)
    scores = run_tasks(*model_and_tokenizer, [folder / "written.yaml", folder / "mine.yaml"], limit=2)
    assert set(scores) == {"written", "mine"}
    assert 0 <= scores["written"]["exact_match"] <= 1


def test_code_is_refused_and_templates_are_sandboxed(folder, model_and_tokenizer):
    from hf_recipes.evaluation.harness import run_tasks

    task = folder / "code.yaml"
    (folder / "beside.py").write_text("def process(docs):\n    return docs.select([0])\n")
    task.write_text(CHOICE + "process_docs: !function beside.process\n")
    with pytest.raises(UserError, match="would run Python"):
        run_tasks(*model_and_tokenizer, [task])
    assert set(run_tasks(*model_and_tokenizer, [task], allow_code=True)) == {"mine"}
    escape = "{{ question.__class__.__mro__[1].__subclasses__() }}"
    task.write_text(CHOICE.replace("{{question}}", escape))
    with pytest.raises(UserError, match="access to attribute '__class__'"):
        run_tasks(*model_and_tokenizer, [task])
    task.write_text(CHOICE + "unsafe_code: true\n")
    with pytest.raises(UserError, match="runs code that the model writes"):
        run_tasks(*model_and_tokenizer, [task])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("rows.jsonl", "absent.jsonl"), "cannot be loaded"),
        (("doc_to_text", "doc_to_txt"), "cannot be loaded"),
        (("multiple_choice", "multiple_choices"), "cannot be loaded"),
    ],
)
def test_a_task_that_cannot_be_used_is_a_sentence(folder, model_and_tokenizer, change, sentence):
    from hf_recipes.evaluation.harness import run_tasks

    (folder / "mine.yaml").write_text(CHOICE.replace(*change))
    with pytest.raises(UserError, match=sentence):
        run_tasks(*model_and_tokenizer, [folder / "mine.yaml"])
    with pytest.raises(UserError, match="does not exist"):
        run_tasks(*model_and_tokenizer, [folder / "absent.yaml"])
