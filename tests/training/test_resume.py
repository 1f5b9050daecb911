from __future__ import annotations

import json

import pytest
from tiny_models import make_tiny_llama

from hf_recipes.core.errors import UserError
from hf_recipes.models.methods.lora import LoraSettings, attach_lora
from hf_recipes.training.resume import check_resume


def checkpoint(tmp_path, model, step):
    model.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return tmp_path / "checkpoint"


def lora(**settings):
    return attach_lora(make_tiny_llama(), LoraSettings(**settings))


def test_a_checkpoint_of_the_same_set_up_may_be_continued(tmp_path):
    check_resume(checkpoint(tmp_path, lora(r=4), step=2), lora(r=4), planned_steps=3)
    check_resume(None, lora(r=4), planned_steps=3)


def save_result(tmp_path, step):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter" / "manifest.json").write_text(json.dumps({"step": step}))


def test_a_finished_run_is_not_trained_on(tmp_path):
    save_result(tmp_path, step=3)
    with pytest.raises(UserError, match="is at step 3 of 3, nothing is left to train"):
        check_resume(checkpoint(tmp_path, lora(r=4), step=3), lora(r=4), planned_steps=3)


def test_a_run_that_lacks_only_its_result_may_go_on_to_save_it(tmp_path):
    last = checkpoint(tmp_path, lora(r=4), step=3)
    check_resume(last, lora(r=4), planned_steps=3)
    save_result(tmp_path, step=2)  # of an attempt that was shorter
    check_resume(last, lora(r=4), planned_steps=3)


def test_a_stream_is_taken_up_in_its_first_pass_only(tmp_path):
    """The Trainer looks for the place in the first pass, wherever it was."""
    last = checkpoint(tmp_path, lora(r=4), step=3)
    for epoch, refused in ((0.5, False), (1.2, True)):
        (last / "trainer_state.json").write_text(json.dumps({"global_step": 3, "epoch": epoch}))
        check_resume(last, lora(r=4), planned_steps=9)
        if refused:
            with pytest.raises(UserError, match=r"streaming: '.*' is in pass 2 over its data"):
                check_resume(last, lora(r=4), planned_steps=9, streamed=True)
        else:
            check_resume(last, lora(r=4), planned_steps=9, streamed=True)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"r": 8}, "trained with r 4, the recipe asks for 8: set lora_r back"),
        ({"r": 4, "target_modules": ["q_proj"]}, "set lora_target_modules back"),
        ({"r": 4, "use_dora": True}, "set method back"),
    ],
)
def test_another_adapter_is_refused_before_anything_is_written_over(settings, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        check_resume(checkpoint(tmp_path, lora(r=4), step=1), lora(**settings), planned_steps=3)
