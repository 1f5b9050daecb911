"""ms-swift's keys that have no counterpart, or need none: what is told of each."""

from __future__ import annotations

from hf_recipes.convert.answers import Rule, holds, lacks
from hf_recipes.convert.trainer_keys import SPEED_ONLY

_TEMPLATE = (
    "the tokenizer's chat template is used; `hf-recipes inspect` shows the text, and chat_template_path names a Jinja "
    "file where it should be another"
)
_NO_COUNTERPART: dict[str, str] = {
    "template": _TEMPLATE,
    "template_backend": _TEMPLATE,
    "agent_template": "tools are written by the chat template",
    "system": "write it into the data as a system turn",
    "response_prefix": "write it into the data's answers",
    "adapters": "an adapter is not trained on: merge it (`hf-recipes merge`), and name the result as the model",
    "resume_only_model": "an adapter is not trained on: merge it, and name the result as the model",
    "external_plugins": "no code is loaded: a callback of your own goes into your own script",
    "custom_register_path": "no code is loaded: write the data as messages, or map them by columns",
    "custom_dataset_info": "name the sources themselves, with columns",
    "cached_dataset": "prepared data of another tool are not read: name the data themselves",
    "cached_val_dataset": "prepared data of another tool are not read: name the data themselves",
    "model_name": "fill {{NAME}} in the self-cognition data yourself",
    "model_author": "fill {{AUTHOR}} in the self-cognition data yourself",
    "new_special_tokens": "no tokens are added: add them to tokenizer and model beforehand",
    "rope_scaling": "change the model's config.json",
    "max_model_len": "change the model's config.json",
    "target_regex": "a regular expression: write the modules' names into lora_target_modules",
    "lora_bias": "biases are not trained",
    "lora_dtype": "adapters are held in fp32",
    "freeze_parameters": "all weights are trained: write method: partial with trainable_layers and trainable_modules",
    "freeze_parameters_regex": "all weights are trained: write method: partial",
    "trainable_parameters": "write method: partial with trainable_modules",
    "trainable_parameters_regex": "write method: partial with trainable_modules",
    "interleave_prob": "sources are not drawn in turn: give one role: general, and general_share",
    "callbacks": "a callback of your own goes into your own script; early_stop is watch: {overfit_stop: on}",
    "loss_type": "the loss is plain cross-entropy",
    "enable_dft_loss": "the loss is plain cross-entropy",
    "enable_channel_loss": "eval loss is told by source where there are several",
    "use_galore": "another optimizer is not offered: AdamW is used",
    "lisa_activated_layers": "layers are not drawn: write method: partial",
    "eval_use_evalscope": "`hf-recipes evaluate RUN_DIR` measures after the run",
    "eval_metric": "`hf-recipes evaluate RUN_DIR` measures after the run",
    "streaming_shuffle": "streams are mixed by exact shares",
    "zero_hpz_partition_size": SPEED_ONLY,
    "deepspeed_autotp_size": "write strategy: tp and tensor_parallel_size",
    "padding_free": SPEED_ONLY,
    "packing_length": "rows are packed up to max_length",
    "use_logits_to_keep": SPEED_ONLY,
    "device_map": "the launcher places the model",
    "max_memory": "the launcher places the model",
}
_HOLDS: dict[str, str] = {
    "use_hf": "models and data come from the Hugging Face Hub or the disk",
    "model_type": "found from the model's config",
    "task_type": "answers are learned",
    "quant_method": "told with quant_bits",
    "bnb_4bit_compute_dtype": "dtype decides it",
    "add_version": "output_dir is by default named after recipe and time, and never overwritten",
    "create_checkpoint_symlink": "checkpoints are told in the report",
    "load_from_cache_file": "prepared data are found again by content and settings",
    "download_mode": "the Hugging Face cache is used",
    "dataset_shuffle": "always shuffled, by seed",
    "train_dataloader_shuffle": "always shuffled, by seed",
    "val_dataset_shuffle": "an eval set needs no order",
    "strict": "bad rows are dropped and counted (bad_rows: fail stops)",
    "lazy_tokenize": SPEED_ONLY,
    "packing_num_proc": SPEED_ONLY,
    "packing_strategy": SPEED_ONLY,
    "acc_strategy": "accuracy is not measured while training",
    "check_model": "checked by our own rules",
    "load_args": "a recipe says all of it",
    "tuner_backend": "PEFT",
    "ignore_args_error": "unknown keys are always an error",
    "max_new_tokens": "acts in generation only",
    "temperature": "acts in generation only",
    "freeze_vit": "only text models are trained",
    "freeze_aligner": "only text models are trained",
    "freeze_llm": "only text models are trained",
    "vit_gradient_checkpointing": "only text models are trained",
    "max_pixels": "only text is trained on",
    "padding_side": "padding is masked by position",
    "norm_bbox": "only text is trained on",
    "shuffle_buffer_size": "streams are mixed by exact shares",
    "stopping_strategy": "acts with interleave_prob only",
    "disable_auto_column_mapping": "columns are mapped as you say",
    "safe_serialization": "always safetensors",
    "max_shard_size": "hf-recipes merge --max-shard-size",
    "is_binary_loss_scale": "every learned token weighs 1",
    "enable_thinking": "the template decides; reasoning in the data is kept",
    "add_non_thinking_prefix": "the template decides",
    "ddp_timeout": "the launcher's default",
    "swanlab_project": "acts with swanlab only",
}
FAMILIES: dict[str, Rule] = {
    r"(swanlab|lora_ga|fourier|boft|vera|adalora|llamapro|reft|galore|lisa)_.*|adapter_(act|length)|hqq_axis": holds(
        "acts with another key only"
    ),
    r"(eval_(dataset|limit|generation|dataset_args|generation_config))|extra_eval_args|mrl_dims|num_labels|problem_type"
    r"|ds3_gather_for_generation": holds("acts in other kinds of training or evaluation only"),
    r"(MAX|FPS|IMAGE|VIDEO|AUDIO|SPEAKER|ENABLE_AUDIO)_?.*|MAX_PIXELS|vit_lr|aligner_lr|model_kwargs": holds(
        "only text is trained on"
    ),
    r"enable_npu_model_patch|load_data_args|use_swift_lora|local_repo_path|use_flash_ckpt|experts_impl|use_ray"
    r"|device_groups|CELOSS_PARALLEL_SIZE|ASCEND_RT_VISIBLE_DEVICES": lacks(SPEED_ONLY),
    r"preserve_thinking|disable_ignore_empty_think": holds("the template decides; reasoning in the data is kept"),
    r"init_strategy|max_epochs": lacks("not offered here"),
}  # fmt: skip
TOLD: dict[str, Rule] = {
    **{key: lacks(note) for key, note in _NO_COUNTERPART.items()},
    **{key: holds(note) for key, note in _HOLDS.items()},
}
