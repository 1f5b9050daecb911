from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.training import trackers
from hf_recipes.training.trackers import check_trackers, tracker_problem


def test_the_names_are_those_of_transformers():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(trackers._MODULES) == set(INTEGRATION_TO_CALLBACK)


@pytest.mark.parametrize("good", [None, "none", "all", [], "tensorboard", ["tensorboard", "wandb"], "kubeflow"])
def test_what_is_installed_passes(good):
    check_trackers(good)


@pytest.mark.parametrize(
    ("report_to", "sentence"),
    [
        ("wand", r"'wand' is no tracker \(did you mean 'wandb'\?\): give none, all, or of"),
        (["tensorboard", "foo"], "'foo' is no tracker: give"),
        ("comet_ml", "comet_ml is not installed: run `pip install comet-ml`, or write report_to: none"),
    ],
)
def test_what_is_not_there_is_said(report_to, sentence, monkeypatch):
    found = trackers.find_spec
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "comet_ml" else found(name))
    with pytest.raises(UserError, match=sentence):
        check_trackers(report_to)


def test_an_error_of_another_package_is_none_of_a_tracker():
    try:
        int("x")
    except ValueError as error:
        assert tracker_problem(error) is None
    assert tracker_problem(ValueError("never raised")) is None


def test_a_tracker_without_a_login_ends_the_run_in_one_sentence(tmp_path, tiny_model_dir, monkeypatch):
    """wandb itself, which is asked for a key that nobody has given."""
    from hf_recipes.core.files import read_json
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.run import train

    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"instruction": "Say a", "output": "a"}\n' * 8)
    (tmp_path / "my.yaml").write_text(
        f"model_name_or_path: {tiny_model_dir}\ndatasets: [rows.jsonl]\nmax_steps: 1\neval_share: 0\n"
        "output_dir: run\nreport_to: wandb\noverfit_check: off\nuse_cpu: true\n"
    )
    with pytest.raises(UserError, match=r"report_to: wandb does not work \(.*\): see to it, or write report_to: none"):
        train(load_recipe("my.yaml", []))
    assert read_json(tmp_path / "run" / "status.json")["code"] == 2
