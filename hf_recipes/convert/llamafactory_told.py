"""LLaMA-Factory's keys that have no counterpart, or need none: what is told of each."""

from __future__ import annotations

from hf_recipes.convert.answers import Rule, holds, lacks
from hf_recipes.convert.trainer_keys import SPEED_ONLY

_OWN_OPTIMIZER = "another optimizer is not offered: AdamW is used, with its full state; choose memory and rate anew"
_GENERATION = "after the run: `hf-recipes evaluate RUN_DIR`"
_NO_COUNTERPART: dict[str, str] = {
    "adapter_name_or_path": "an adapter is not trained on: merge it (`hf-recipes merge`), and name the result",
    "create_new_adapter": "an adapter is not trained on: merge it first",
    "resize_vocab": "no tokens are added: add them to tokenizer and model beforehand",
    "add_tokens": "no tokens are added: add them to tokenizer and model beforehand",
    "add_special_tokens": "no tokens are added: add them to tokenizer and model beforehand",
    "new_special_tokens_config": "no tokens are added: add them to tokenizer and model beforehand",
    "rope_scaling": "change the model's config.json",
    "shift_attn": "shifted-sparse attention is not offered",
    "mixture_of_depths": "not offered",
    "use_unsloth": SPEED_ONLY,
    "use_unsloth_gc": SPEED_ONLY,
    "upcast_layernorm": "norms are computed as the model's code says",
    "upcast_lmhead_output": "the loss is computed in fp32 anyway",
    "train_from_scratch": "training from scratch is not offered",
    "moe_aux_loss_coef": "write router_aux_loss_coef",
    "split_special_tokens": "a row with a control token in its text is dropped and counted",
    "interleave_probs": "sources are not drawn in turn: give one role: general, and general_share",
    "eval_on_each_dataset": "the eval loss is over all held-out rows",
    "tool_format": "tools are written by the chat template",
    "default_system": "write it into the data as a system turn",
    "tokenized_path": "prepared data are kept and found again by themselves (data_cache_dir moves them)",
    "compute_accuracy": "eval loss only while training; `hf-recipes evaluate` scores answers",
    "use_galore": _OWN_OPTIMIZER,
    "use_apollo": _OWN_OPTIMIZER,
    "use_badam": _OWN_OPTIMIZER,
    "use_adam_mini": _OWN_OPTIMIZER,
    "use_muon": _OWN_OPTIMIZER,
    "use_llama_pro": "no blocks are added",
    "use_asft_loss": "the loss is plain cross-entropy",
    "use_eaft_loss": "the loss is plain cross-entropy",
    "fp8": SPEED_ONLY,
    "use_kt": SPEED_ONLY,
    "ray_num_workers": "`hf-recipes launch --on ray` writes the job",
    "ray_run_name": "`hf-recipes launch --on ray` writes the job",
    "master_addr": "hf-recipes sft --main_process_ip",
    "master_port": "hf-recipes sft --main_process_port",
    "enable_torch_profiler": "hf-recipes profile measures a recipe's steps",
    "media_dir": "only text is trained on",
    "freeze_language_model": "only text models are trained",
    "export_dir": "hf-recipes merge RUN_DIR",
}
_HOLDS: dict[str, str] = {
    "plot_loss": "curves are always drawn, in report.html",
    "overwrite_cache": "prepared data are found again by content and settings",
    "preprocessing_batch_size": "changes nothing that is learned",
    "cache_dir": "the Hugging Face cache: set HF_HOME",
    "use_fast_tokenizer": "the fast tokenizer wherever there is one",
    "low_cpu_mem_usage": "always",
    "print_param_status": "what is trained is always told",
    "include_effective_tokens_per_second": "always logged",
    "ignore_pad_token_for_loss": "padding is masked by position",
    "double_quantization_device_map": "the launcher places the model",
    "quantization_device_map": "the launcher places the model",
    "freeze_vision_tower": "only text models are trained",
    "freeze_multi_modal_projector": "only text models are trained",
    "loraplus_lr_embedding": "embeddings are not targets by default",
    "pissa_convert": "the run's adapter/ is always plain LoRA for the base as published",
    "pissa_iter": "told with pissa_init",
    "use_reentrant_gc": SPEED_ONLY,
    "use_kv_cache": "acts in generation only",
    "buffer_size": "streams are mixed by exact shares",
    "data_shared_file_system": "prepared data are shared where the disk is",
    "ray_storage_path": "acts with Ray only",
    "enable_thinking": "the template decides; reasoning in the data is kept",
    "preserve_thinking": "the template decides; reasoning in the data is kept",
    "infer_backend": "acts in generation only",
    "infer_dtype": "acts in generation only",
}
_GENERATING = (
    "do_sample", "temperature", "top_p", "top_k", "num_beams", "max_new_tokens", "repetition_penalty", "length_penalty",
    "eval_num_beams", "skip_special_tokens",
)  # fmt: skip
FAMILIES: dict[str, Rule] = {
    r"(galore|apollo|badam|swanlab|profiler|kt|_kt|asft|eaft|oft|fp8)_.*|module_dropout|profile_modules"
    r"|init_special_tokens|ray_.*": holds("acts with another key only"),
    r"(vllm|sglang|export)_.*|offload_folder|adapter_folder|max_length": holds("acts outside training only"),
    r"(pref|dpo|kto|ppo|simpo|ref|reward)_.*|ld_alpha": holds("acts in other kinds of training only"),
    r"(image|video|audio)_.*|crop_to_patches|use_audio_in_video": holds("only text is trained on"),
    r"use_(mca|megatron_bridge|hyper_parallel|v1_kernels)|.*model_parallel_size|sequence_parallel|megatron_.*"
    r"|hyper_parallel_.*|.*_fusion|overlap_.*|moe_.*|recompute_.*|use_distributed_optimizer|use_packed_.*": lacks(
        "another engine's: strategy says how processes share the work"
    ),
    r"compute_dtype|device_map|model_max_length|block_diag_attn|om_hub_token": holds("not set by hand, there too"),
}  # fmt: skip
TOLD: dict[str, Rule] = {
    **{key: lacks(note) for key, note in _NO_COUNTERPART.items()},
    **{key: holds(note) for key, note in _HOLDS.items()},
    **{key: holds(_GENERATION) for key in _GENERATING},
}
