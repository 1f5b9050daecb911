"""Task files of lm-evaluation-harness: a metric that it has not it takes for Python, here or on the Hub, and runs."""

from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.harness_files import refuse_foreign_metrics

KNOWN = ("acc", "acc_norm")
TASK = "task: mine\ndataset_path: json\ndoc_to_text: '{{q}}'\nmetric_list:\n"


def test_metrics_of_the_harness_pass(tmp_path):
    (tmp_path / "task.yaml").write_text(TASK + "- {metric: acc}\n- metric: acc_norm\n  hf_evaluate: false\n")
    refuse_foreign_metrics(tmp_path / "task.yaml", KNOWN)


@pytest.mark.parametrize(
    "metric",
    [
        "{metric: planted}",
        "{metric: ./planted}",
        "{metric: owner/space}",
        "{metric: planted/planted.py}",
        "{metric: acc, hf_evaluate: true}",
        "{metric: acc, hf_evaluate: yes}",
        "{metric: [acc]}",
        "{metric: &m acc}\n- {metric: '{{x}}'}",
    ],
)
def test_other_metrics_are_refused_with_their_line(metric, tmp_path):
    (tmp_path / "task.yaml").write_text(f"{TASK}- {metric}\n")
    with pytest.raises(UserError, match=r"task\.yaml, line [56] names a metric that lm_eval has not"):
        refuse_foreign_metrics(tmp_path / "task.yaml", KNOWN)


def test_in_an_included_file_a_group_or_an_alias_too(tmp_path):
    (tmp_path / "base.yaml").write_text("metric_list: [{metric: planted}]\n")
    group = tmp_path / "group.yaml"
    for text in (
        "include: base.yaml\n",
        "group: g\ntask:\n- task: mine\n  metric_list: [{metric: planted}]\n",
        "a: &a {metric: planted}\nb: [*a, *a]\n",
        json.dumps({"task": "mine", "metric_list": [{"metric": "planted"}]}),
    ):
        group.write_text(text)
        with pytest.raises(UserError, match="names a metric that lm_eval has not"):
            refuse_foreign_metrics(group, KNOWN)


def test_aliases_upon_aliases_are_walked_once(tmp_path):
    lines = ["a0: &a0 {metric: acc}"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    (tmp_path / "task.yaml").write_text("\n".join(lines))
    refuse_foreign_metrics(tmp_path / "task.yaml", KNOWN)


def test_a_metric_planted_beside_a_task_is_not_run(tmp_path, canary, evil, tiny_model, tokenizer):
    pytest.importorskip("lm_eval")
    from hf_recipes.evaluation.harness import run_tasks

    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "planted.py").write_text(evil)
    (tmp_path / "rows.json").write_text('{"q": "one", "a": "two"}\n')
    (tmp_path / "task.yaml").write_text(
        TASK + "- {metric: planted}\noutput_type: generate_until\ndoc_to_target: '{{a}}'\ntest_split: train\n"
        "dataset_kwargs: {data_files: rows.json}\n"
    )
    with pytest.raises(UserError, match="a metric that lm_eval has not"):
        run_tasks(tiny_model, tokenizer, [tmp_path / "task.yaml"])
    assert not canary.exists()
