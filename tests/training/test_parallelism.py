from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from tiny_models import make_tiny_llama

from hf_recipes.core.data_parallel import data_parallel_ranks, set_degrees
from hf_recipes.core.errors import UserError
from hf_recipes.models.placement import TENSOR_PARALLEL, sharded_by
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.names import Sizes, layout_of
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.arguments import global_batch_size
from hf_recipes.training.launched import run_layout
from hf_recipes.training.method_limits import check_loraplus
from hf_recipes.training.parallelism import (
    check_context_parallel,
    check_cut,
    check_tensor_parallel,
    padded_to,
    save_model_only,
    tensor_parallel_config,
)
from hf_recipes.training.strategy_file import check_strategy

TP = layout_of("tp", 8)
TP_FSDP = layout_of("tp", 8, sizes=Sizes(tensor=2))


def arguments_of(tensor=1, context=1, world_size=8):
    arguments = SimpleNamespace(
        world_size=world_size,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        fsdp=None,
        save_strategy="steps",
        save_only_model=False,
    )
    set_degrees(arguments, tensor, context)
    return arguments


def recipe_with(**values):
    return Recipe("r", values, frozenset(values))


def test_ranks_on_the_same_rows_count_once():
    assert [data_parallel_ranks(arguments_of(*degrees)) for degrees in ((1, 1), (2, 1), (1, 4), (8, 1))] == [8, 4, 2, 1]
    assert global_batch_size(arguments_of(tensor=4)) == 2 * 3 * 2
    assert data_parallel_ranks(SimpleNamespace(world_size=8)) == 8


def test_transformers_is_told_of_both_degrees():
    assert tensor_parallel_config(arguments_of()) is None
    config = tensor_parallel_config(arguments_of(tensor=2))
    assert (config.tp_size, config.fsdp_size) == (2, 4)


def test_a_cut_model_counts_as_sharded_and_is_planned_as_what_it_is():
    arguments = arguments_of(tensor=2)
    assert sharded_by(arguments) == TENSOR_PARALLEL
    assert run_layout(arguments) == TP_FSDP
    assert run_layout(arguments_of(tensor=8)) == TP


def test_the_launcher_starts_plain_ranks_for_tensor_parallelism_and_pipelines():
    plain = Layout(8, 1, "ddp")
    check_strategy("tp", plain, Sizes(tensor=2))
    check_strategy("pp", plain, Sizes(pipeline=2))
    with pytest.raises(UserError, match="strategy: tp means DDP over 8 ranks, and the launcher made ZeRO-2"):
        check_strategy("tp", Layout(8, 1, "zero2"))
    with pytest.raises(UserError, match="does not cut"):
        check_strategy("tp", plain, Sizes(tensor=3))


@pytest.mark.parametrize(
    ("layout", "values", "told"),
    [
        (TP, {"method": "qlora"}, "trains method: full or lora, not qlora"),
        (TP, {"method": "dora"}, "not dora"),
        (TP_FSDP, {"method": "lora"}, "cannot have data-parallel ranks beside it .*: give tensor_parallel_size all"),
        (TP, {"method": "full", "resume_from_checkpoint": "last"}, "the Trainer saves no optimizer to go on with"),
    ],
)
def test_what_tensor_parallelism_cannot_do_is_refused(layout, values, told):
    with pytest.raises(UserError, match=told):
        check_tensor_parallel(recipe_with(**values), layout)
    check_tensor_parallel(recipe_with(**values), layout_of("ddp", 8))


def test_what_it_can_do_passes():
    check_tensor_parallel(recipe_with(method="full"), TP_FSDP)
    check_tensor_parallel(recipe_with(method="lora", resume_from_checkpoint="auto"), TP)


@pytest.mark.parametrize("strategy", ["fsdp", "zero1", "zero2", "zero3", "tp"])
def test_loraplus_is_refused_where_the_strategy_makes_the_optimizer(strategy):
    recipe = recipe_with(method="lora", loraplus_lr_ratio=16.0)
    with pytest.raises(UserError, match=r"loraplus_lr_ratio does not go with .*, or take strategy: ddp"):
        check_loraplus(recipe, layout_of(strategy, 2))


def test_loraplus_passes_elsewhere():
    for layout in (Layout(), layout_of("ddp", 2), layout_of("pp", 2)):
        check_loraplus(recipe_with(method="lora", loraplus_lr_ratio=16.0), layout)
    check_loraplus(recipe_with(method="lora"), layout_of("fsdp", 2))
    check_loraplus(recipe_with(method="full", loraplus_lr_ratio=16.0), layout_of("fsdp", 2))


def test_lora_on_what_is_cut_along_its_input_is_refused(tiny_model):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_model, LoraConfig(target_modules=["q_proj", "o_proj"]))
    check_cut(model)  # nothing is cut
    tiny_model._tp_size, tiny_model._fsdp_size = 2, 1
    with pytest.raises(UserError, match="PEFT cannot put LoRA on o_proj, cut along their input"):
        check_cut(model)
    check_cut(get_peft_model(model.unload(), LoraConfig(target_modules=["q_proj", "v_proj", "up_proj"])))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_cut_twice_are_refused(tied):
    model = make_tiny_llama(tied=tied)
    model._tp_size, model._fsdp_size = 2, 1
    check_cut(model)
    model._fsdp_size = 2
    if not tied:
        check_cut(model)
        return
    with pytest.raises(UserError, match="updates this model's tied embedding and head apart"):
        check_cut(model)


def test_checkpoints_hold_the_model_alone_and_this_is_told(caplog):
    arguments = arguments_of(tensor=8)
    save_model_only(arguments)
    assert arguments.save_only_model
    assert "a run that is stopped cannot be resumed" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        save_model_only(SimpleNamespace(save_strategy="no", save_only_model=False))
    assert not caplog.text


@pytest.mark.parametrize(
    ("values", "told"),
    [({"packing": True}, "would see each other"), ({"attn_implementation": "eager"}, "eager cannot be cut")],
)
def test_what_ring_attention_cannot_do_is_refused(values, told):
    layout = layout_of("cp", 4)
    with pytest.raises(UserError, match=told):
        check_context_parallel(recipe_with(**values), layout)
    check_context_parallel(recipe_with(**values), layout_of("fsdp", 4))
    check_context_parallel(recipe_with(), layout)


@pytest.mark.parametrize(("context", "multiple"), [(1, 8), (2, 8), (4, 8), (8, 16), (6, 24)])
def test_rows_are_padded_to_what_they_are_cut_into(context, multiple):
    assert padded_to(arguments_of(context=context, world_size=24)) == multiple
