"""The model and the trainer of a row, put together from the package's own pieces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from memory_rows.rows import Row, layout_of
from memory_rows.shapes import build_config


def build_base(row: Row) -> Any:
    """A random base in the row's dtype; quantised by bitsandbytes through a saved copy for ``qlora``."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    dtype = getattr(torch, row.weights)
    model = AutoModelForCausalLM.from_config(build_config(row.shape, row.attention), dtype=dtype)
    if row.method != "qlora":
        return model
    from hf_recipes.models.base import load_base
    from hf_recipes.models.quantized import choose_quantization
    from hf_recipes.models.source import find_model

    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        source = find_model(directory)
        quantization = choose_quantization(source, "qlora", row.weights)
        return load_base(source, dtype=row.weights, quantization=quantization, attn_implementation=row.attention)


def attach(row: Row, model: Any) -> Any:
    """The row's method on `model`, as `training.model.build_for_method` puts it there."""
    from hf_recipes.models.methods.experts import set_router_training
    from hf_recipes.models.methods.lora import LoraSettings, attach_lora
    from hf_recipes.models.methods.partial import PartialSettings, attach_partial
    from hf_recipes.models.quantized import freeze_quantized
    from hf_recipes.models.trained_dtype import widen_trained

    if row.method == "full":
        set_router_training(model, False)
        return model
    if row.method == "partial":
        return attach_partial(model, PartialSettings(2), autocast_adapter_dtype=row.autocast)
    model = freeze_quantized(model, row.weights)
    settings = LoraSettings(
        r=row.r,
        alpha=2 * row.r,
        dropout=row.dropout,
        target_modules="all-linear" if row.targets == ("all-linear",) else row.targets,
        use_dora=row.method == "dora",
    )
    model = attach_lora(model, settings)
    widen_trained(model, under_autocast=row.autocast)
    return model


def build_trainer(row: Row, model: Any, output: Path, watch: Callable[[str], None]) -> Any:
    """The real `SupervisedTrainer` of the row; `watch` is told the phases as they begin and end."""
    from transformers import TrainerCallback
    from trl import SFTConfig

    from hf_recipes.data.batching.collate import SupervisedCollator
    from hf_recipes.models.trained_dtype import restore_dtypes, trained_dtypes
    from hf_recipes.training.checkpointing import let_selective_reach_the_base
    from hf_recipes.training.trainer import SupervisedTrainer

    class Watched(SupervisedTrainer):
        def compute_loss(self, *arguments: Any, **more: Any) -> Any:
            watch("forward")
            loss = super().compute_loss(*arguments, **more)
            watch("backward")
            return loss

    class Marks(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            watch("optimizer_step")

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            watch("between")

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch("end")

    kwargs = checkpointing_kwargs(row.checkpointing)
    let_selective_reach_the_base(model, kwargs)
    arguments = SFTConfig(
        output_dir=str(output),
        per_device_train_batch_size=row.batch,
        gradient_accumulation_steps=row.accumulation,
        max_steps=row.steps,
        learning_rate=1e-4,
        optim=row.optimizer,
        bf16=row.autocast,
        use_cpu=row.sharding in ("none", "ddp"),
        activation_checkpointing=kwargs is not None,
        gradient_checkpointing=kwargs is not None,
        activation_checkpointing_kwargs=kwargs,
        gradient_checkpointing_kwargs=kwargs,
        ddp_find_unused_parameters=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
        max_length=None,
        router_aux_loss_coef=0.0,  # as `training.model` sets it where routers are frozen
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        train_sampling_strategy="sequential",
        **_sharding(row),
    )
    dtypes = trained_dtypes(model)
    trainer = Watched(
        model=model,
        args=arguments,
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=_data(row),
        processing_class=_tokenizer(),
        callbacks=[Marks()],
    )
    if row.sharding not in ("fsdp", "zero3"):
        restore_dtypes(model, dtypes)
    return trainer


def checkpointing_kwargs(name: str) -> dict[str, Any] | None:
    """The Trainer's arguments for one of the planner's names; None for off."""
    if name == "off":
        return None
    if name.startswith("every_"):
        return {"every_n_layers": int(name.removeprefix("every_"))}
    return {"all": {}, "selective": {"selective": True}, "host": {"offload": True}}[name]


def _sharding(row: Row) -> dict[str, Any]:
    if row.sharding == "fsdp":
        layer = {"llama": "LlamaDecoderLayer", "mistral": "MistralDecoderLayer"}[row.shape.split("-")[0]]
        return {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": layer}}
    if row.sharding.startswith("zero"):
        from hf_recipes.plan.strategy.deepspeed_config import deepspeed_config

        return {"deepspeed": deepspeed_config(layout_of(row))}
    return {}


def _data(row: Row) -> Any:
    from datasets import Dataset

    size = row.batch * row.accumulation * row.ranks * row.steps
    ids = torch.randint(3, 4000, (size, row.tokens), generator=torch.Generator().manual_seed(0)).tolist()
    first = row.tokens - round(row.supervised * row.tokens)
    return Dataset.from_list([{"input_ids": each, "labels": [-100] * first + each[first:]} for each in ids])


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<s>": 1, "</s>": 2}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="</s>", pad_token="</s>")
