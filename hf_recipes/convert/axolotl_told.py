"""Axolotl's keys that have no counterpart, or need none: what is told of each."""

from __future__ import annotations

from hf_recipes.convert.answers import Rule, holds, lacks
from hf_recipes.convert.trainer_keys import OTHER_TOOLS_CHECKPOINT, SPEED_ONLY

_FROZEN = "all weights are trained: write method: partial with trainable_layers and trainable_modules"
_SPEED: tuple[str, ...] = (
    "pad_to_sequence_len", "pad_to_multiple_of", "batch_flattening", "multipack_real_batches",
    "sample_packing_bin_size",
    "sample_packing_group_size", "sample_packing_sequentially", "sample_packing_mp_start_method",
    "sample_packing_eff_est", "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel",
    "chunked_cross_entropy", "chunked_cross_entropy_num_chunks", "flash_attn_cross_entropy", "flash_attn_fuse_mlp",
    "flash_attn_rms_norm", "liger_rope", "liger_rms_norm", "liger_rms_norm_gated", "liger_layer_norm", "liger_swiglu",
    "liger_glu_activation", "liger_cross_entropy", "tiled_mlp", "tiled_mlp_num_shards", "tiled_mlp_use_original_mlp",
    "layer_offloading", "selective_checkpointing", "fused_attn_kernel", "sdpa_varlen", "gc_steps", "gc_collect_steps",
    "torch_compile_options", "deepcompile", "ddp_broadcast_buffers", "lora_on_cpu", "low_cpu_mem_usage",
    "dataset_keep_in_memory", "experts_implementation", "use_kernels", "device_map", "max_memory", "gpu_memory_limit",
    "heads_k_stride", "ring_attn_func", "qlora_sharded_model_loading", "embeddings_skip_upcast", "fp8",
)  # fmt: skip
_NO_COUNTERPART: dict[str, str] = {
    "lora_model_dir": "an adapter is not trained on: merge it (`hf-recipes merge`), and name the result as the model",
    "lora_fan_in_fan_out": "set by PEFT from the layer's kind",
    "peft_layers_to_transform": "write the layers' names into lora_target_modules",
    "peft_layers_pattern": "write the layers' names into lora_target_modules",
    "peft": "LoftQ is not offered: init_lora_weights: pissa is near",
    "peft_layer_replication": "layers are never doubled",
    "peft_trainable_token_indices": "write lora_modules_to_save: [embed_tokens], which trains all rows",
    "bnb_config_kwargs": "write bnb_4bit_quant_type, use_bnb_nested_quant, bnb_4bit_quant_storage",
    "gptq": "a GPTQ base is not trained on: give the 16-bit model, and method: qlora",
    "unfrozen_parameters": _FROZEN,
    "relora": "ReLoRA is not offered: a higher lora_r is near",
    "tokens": "no tokens are added: add them to tokenizer and model beforehand",
    "added_tokens_overrides": "no tokens are renamed: change the tokenizer beforehand",
    "default_system_message": "write it into the data as a system turn",
    "eot_tokens": "the token that ends a turn is found from the chat template",
    "chat_template_kwargs": "the template is called without: put them into a template of your own",
    "batch_size": "write gradient_accumulation_steps: the batch over micro-batch and processes",
    "embedding_lr": "all of a kind train at one rate; loraplus_lr_ratio sets B's apart",
    "embedding_lr_scale": "all of a kind train at one rate; loraplus_lr_ratio sets B's apart",
    "lr_groups": "all of a kind train at one rate; loraplus_lr_ratio sets B's apart",
    "cosine_constant_lr_ratio": "write lr_scheduler_type: warmup_stable_decay, or leave it",
    "lr_quadratic_warmup": "warm-up is linear",
    "loss_watchdog_threshold": "watch: judges the loss by the run's own course, and stops at NaN",
    "loss_watchdog_patience": "watch: judges the loss by the run's own course, and stops at NaN",
    "trainer_cls": "the trainer is ours: use the watchers in your own script instead (docs: In your own script)",
    "do_bench_eval": "`hf-recipes evaluate RUN_DIR` measures after the run",
    "do_causal_lm_eval": "`hf-recipes evaluate RUN_DIR` measures after the run; scores: [bleu, chrf] there",
    "eval_causal_lm_metrics": "write evaluation: {scores: [bleu, chrf]}",
    "eval_table_size": "watch: {samples: N} shows answers to eval rows",
    "min_sample_len": "clean: {empty: on} drops answers without content; others are kept",
    "eval_sequence_len": "max_length holds for both",
    "push_dataset_to_hub": "data are not uploaded",
    "overrides_of_model_config": "change the model's config.json",
    "model_config": "change the model's config.json",
    "model_kwargs": "write the recipe's own keys for the model",
    "noisy_embedding_alpha": "write neftune_noise_alpha",
    "rope_scaling": "change the model's config.json",
    "use_ray": "`hf-recipes launch --on ray` writes the job",
    "use_pose": "PoSE is not offered",
    "use_eaft": "the loss is plain cross-entropy",
    "qat": "quantise after training: hf-recipes export",
    "quantization": "quantise after training: hf-recipes export",
    "reinit_weights": "training from scratch is not offered",
    "dp_shard_size": "strategy: hsdp shards within a machine",
    "dp_replicate_size": "strategy: hsdp shards within a machine",
    "freeze_mm_modules": "only text models are trained",
    "dataset_shard_num": "no part of a data set is picked by number: write split: train[:10%]",
    "dataset_shard_idx": "no part of a data set is picked by number: write split: train[:10%]",
    "fix_untrained_tokens": "embeddings stay as they are",
    "resize_token_embeddings_to_32x": "embeddings stay as they are",
    "shrink_embeddings": "embeddings stay as they are",
    "optim_target_modules": "write optim_target_modules beside a GaLore optim by hand",
    "wandb_watch": "watch: {grad_norm_per_layer: on} logs gradients by layer",
    "profiler_steps": "hf-recipes profile measures a recipe's steps",
    "accelerator_config": "the recipe's own keys decide",
    "generate_samples": "watch: {samples: N} shows answers to eval rows",
    "resume_from_checkpoint": OTHER_TOOLS_CHECKPOINT,
    "hf_use_auth_token": "log in (`hf auth login`) or set HF_TOKEN",
    "dataloader_multiprocessing_context": SPEED_ONLY,
}
_HOLDS: dict[str, str] = {
    "strict": "unknown keys are always an error",
    "dataset_prepared_path": "prepared data are kept and found again by themselves (data_cache_dir moves them)",
    "skip_prepare_dataset": "prepared data are found again by themselves",
    "tokenizer_use_fast": "the fast tokenizer wherever there is one",
    "tokenizer_legacy": "as the tokenizer's own config says",
    "is_llama_derived_model": "found from the model's config",
    "is_mistral_derived_model": "found from the model's config",
    "is_falcon_derived_model": "found from the model's config",
    "is_qwen_derived_model": "found from the model's config",
    "local_rank": "the launcher sets it",
    "world_size": "the launcher sets it",
    "device": "the launcher sets it",
    "ddp": "several processes are data parallel by themselves",
    "save_safetensors": "always safetensors",
    "include_tokens_per_second": "always logged",
    "include_tkps": "always logged",
    "eval_sample_packing": "the eval set is never packed",
    "fsdp_version": "FSDP2 always",
    "fsdp_final_state_dict_type": "the result is an ordinary model or adapter",
    "remove_unused_columns": "batches hold only what the model takes",
    "shuffle_before_merging_datasets": "all rows are shuffled together",
    "save_first_step": "a trial save after the first step is our default",
    "loraplus_lr_embedding": "embeddings are not targets by default",
    "mean_resizing_embeddings": "embeddings are not resized",
    "merge_lora": "`hf-recipes merge RUN_DIR` merges after the run",
    "merge_method": "`hf-recipes merge RUN_DIR` streams",
    "peft_autocast_adapter_dtype": "adapters are held in fp32",
    "generation_max_new_tokens": "acts with generate_samples only",
    "num_generation_samples": "acts with generate_samples only",
    "eval_max_new_tokens": "acts with generation during evaluation only",
}
FAMILIES: dict[str, Rule] = {
    r"(dpo|kto|orpo|simpo|cpo|rpo|rl)_.*|rl|trl|vllm|ebft|reward_model|process_reward_model|center_rewards_coefficient"
    r"|max_prompt_len|precompute_ref_log_probs|num_labels": holds("acts in other kinds of training only"),
    r"(mlflow|comet|trackio|swanlab|otel|hf_mlflow)_.*|use_swanlab|use_otel_metrics": lacks(
        "set the tracker up by its environment variables"
    ),
    r"(pose|dion|qgalore|eaft|relora|jagged_restart|gradio|generation|bench|ray|profiler_steps|scaling_softmax)_.*"
    r"|nvfp4_\w+|adam_beta3|adam_epsilon2|streaming_multipack_buffer_size|pretrain_.*|resources_per_worker|torchdistx_path"
    r"|num_dataset_shards_to_save|fp32_norm_classes|flex_attn_compile_kwargs": holds("acts with another key only"),
    r"lisa_.*": lacks("layers are not drawn: method: partial trains the last ones"),
    r"liger_use_token_scaling|use_(scattermoe|sonicmoe|\w+_kernels)|expert_parallel_\w+|gemma4_hybrid_attn_impl"
    r"|large_head_attention|flash_(optimum|attn_d512)|fp8_enable_fsdp_float8_all_gather|dsv4_\w+|fp32_norms"
    r"|experimental_skip_move_to_device|llama4_linearized_experts|dynamic_checkpoint": lacks(SPEED_ONLY),
    r"(model_quantization|quantize_moe).*|use_onebitllms|scaling_softmax|diffusion|llmcompressor|lr_div_factor"
    r"|max_packed_sequence_len|cls_model_config|overrides_of_model_kwargs|tokenizer_use_mistral_common"
    r"|peft_ensure_weight_tying": lacks("not offered here"),
    r"image_.*|processor_kwargs|role_boundaries": lacks("only text is trained on"),
    r"is_preprocess|preprocess_iterable|total_.*_?tokens|axolotl_config_path|tokenizer_save_jinja_files|debug": holds(
        "changes nothing that is learned"
    ),
}  # fmt: skip
TOLD: dict[str, Rule] = {
    **dict.fromkeys(_SPEED, lacks(SPEED_ONLY)),
    **{key: lacks(note) for key, note in _NO_COUNTERPART.items()},
    **{key: holds(note) for key, note in _HOLDS.items()},
}
