"""The recipe keys that are ours; all others are those of TRL's `SFTConfig` and `ModelConfig`, with their names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Method = Literal["full", "partial", "lora", "dora", "qlora", "adapter", "prefix", "ia3"]
LoraMethods = ("lora", "dora", "qlora")
# Those that `plan.strategy.names` has layouts for; a test holds the two together.
Strategy = Literal[
    "auto",
    "single",
    "ddp",
    "zero1",
    "zero2",
    "fsdp",
    "hsdp",
    "zero3",
    "zero2_offload",
    "zero3_offload",
    "fsdp_offload",
    "zero3_offload_all",
    "tp",
    "cp",
    "pp",
]

# Keys that act with some methods only; given with another one, they are told to have no effect.
KEYS_OF_METHODS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "lora_r",
            "lora_alpha",
            "lora_dropout",
            "lora_target_modules",
            "lora_target_parameters",
            "lora_modules_to_save",
            "use_rslora",
            "lora_rank_pattern",
            "lora_alpha_pattern",
            "init_lora_weights",
            "loraplus_lr_ratio",
        ),
        LoraMethods,
    ),
    **dict.fromkeys(
        ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage", "load_in_8bit"), ("qlora",)
    ),
    "trainable_layers": ("partial",),
    "trainable_modules": ("partial",),
    "adapter_size": ("adapter",),
    "adapter_activation": ("adapter",),
    "adapter_dropout": ("adapter",),
    "adapter_target_modules": ("adapter",),
    "num_virtual_tokens": ("prefix",),
    "prefix_projection": ("prefix",),
    "ia3_target_modules": ("ia3",),
    "ia3_feedforward_modules": ("ia3",),
    "train_router": ("full", "partial", *LoraMethods),
}

# Kinds of value a key may have besides its annotation's: `HfArgumentParser` knows no unions of three.
MORE_KINDS: dict[str, tuple[str, ...]] = {"clean": ("bool", "list"), "on_finish": ("bool",), "overfit_check": ("bool",)}


@dataclass
class RecipeArguments:
    """What hf_recipes adds to SFTConfig and ModelConfig; every field is a flat key of the recipe."""

    method: Method = field(
        default="lora",
        metadata={
            "help": "What is trained: every weight (full), some layers (partial), LoRA, DoRA, LoRA on a 4-bit or 8-bit "
            "base (qlora), a bottleneck adapter (adapter), prefix tuning (prefix) or IA3 (ia3)."
        },
    )
    trainable_layers: int | None = field(
        default=None,
        metadata={"help": "method: partial: how many decoder layers are trained, from the last; negative: the first."},
    )
    trainable_modules: list[str] | None = field(
        default=None,
        metadata={"help": "method: partial: modules trained besides the layers, by name or end of name (lm_head)."},
    )
    lora_rank_pattern: dict[str, Any] | None = field(
        default=None, metadata={"help": "Ranks of single modules, {name or regular expression: r}; else lora_r."}
    )
    lora_alpha_pattern: dict[str, Any] | None = field(
        default=None,
        metadata={"help": "Alphas of single modules, {name or regular expression: alpha}; else lora_alpha."},
    )
    init_lora_weights: str = field(
        default="default",
        metadata={
            "help": "How LoRA starts: default, gaussian, orthogonal, pissa, pissa_niter_N, olora, or eva (from the "
            "data)."
        },
    )
    loraplus_lr_ratio: float | None = field(
        default=None,
        metadata={"help": "LoRA+: learning rate of the B matrices as a multiple of that of A (16 is usual; off: 1)."},
    )
    adapter_size: int = field(default=64, metadata={"help": "method: adapter: width of the bottleneck."})
    adapter_activation: Literal["relu", "gelu", "silu"] = field(
        default="relu", metadata={"help": "method: adapter: what stands between the two projections."}
    )
    adapter_dropout: float = field(default=0.0, metadata={"help": "method: adapter: dropout on the adapter's output."})
    adapter_target_modules: list[str] | None = field(
        default=None,
        metadata={
            "help": "method: adapter: modules whose output passes through an adapter; default: the output projections "
            "of attention and MLP."
        },
    )
    num_virtual_tokens: int = field(default=20, metadata={"help": "method: prefix: length of the trained prefix."})
    prefix_projection: bool = field(
        default=False, metadata={"help": "method: prefix: train the prefix through a two-layer MLP."}
    )
    ia3_target_modules: list[str] | None = field(
        default=None, metadata={"help": "method: ia3: modules that are rescaled; default: by the architecture."}
    )
    ia3_feedforward_modules: list[str] | None = field(
        default=None, metadata={"help": "method: ia3: those of them whose input, not output, is rescaled."}
    )
    train_router: bool = field(
        default=False, metadata={"help": "Mixture of experts: train the routers too (frozen by default)."}
    )
    auto_micro_batch: bool = field(
        default=False,
        metadata={
            "help": "Take the largest micro-batch that fits in memory; the global batch is kept by accumulation, the "
            "learning rate as it is."
        },
    )
    loss_kernel: Literal["auto", "torch", "liger", "cce"] = field(
        default="auto",
        metadata={
            "help": "What computes head and loss: plain PyTorch, or on a GPU the kernels of liger-kernel or "
            "cut-cross-entropy where installed (auto: the fastest that gives the same loss)."
        },
    )
    datasets: list[dict[str, Any]] | None = field(
        default=None,
        metadata={
            "help": "The data: a list of {path, name, split, data_files, columns, role: domain|general, "
            "format: auto|alpaca|sharegpt|messages|prompt_completion|text, weight, eval_share, group_by, stratify_by, "
            "balance_by}."
        },
    )
    general_share: float = field(
        default=0.15,
        metadata={"help": "Share of `role: general` rows in the training set, against forgetting (0 to 0.9)."},
    )
    share_unit: Literal["rows", "tokens", "supervised_tokens"] = field(
        default="rows", metadata={"help": "What general_share is counted in."}
    )
    max_repeats: int = field(
        default=1,
        metadata={"help": "How often a general row may be used where there are too few of them for general_share."},
    )
    eval_share: float = field(
        default=0.1,
        metadata={"help": "Share of every source kept for the eval loss, split off before mixing (0: none)."},
    )
    clean: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "Cleaning rules, all off by default: on, a list of rules, or {html, unicode, control_characters, "
            "…, duplicates: off|exact|near}; see docs/cleaning.md."
        },
    )
    mask_history: bool = field(
        default=False, metadata={"help": "Learn the last assistant turn of each conversation only, not all of them."}
    )
    overlong: Literal["drop", "shorten_prompt", "split"] = field(
        default="drop",
        metadata={
            "help": "A sample whose answer would be cut at max_length: drop it, shorten its prompt from the start, or "
            "split the conversation between turns (plain text anywhere)."
        },
    )
    bad_rows: Literal["drop", "fail"] = field(
        default="drop", metadata={"help": "An unreadable or ill-formed row: drop and count it, or stop."}
    )
    streaming: bool = field(
        default=False,
        metadata={"help": "Read, tokenise and mix the data while training on it; needs max_steps."},
    )
    data_cache_dir: str | None = field(
        default=None,
        metadata={"help": "Where prepared samples are kept; by default in the cache directory of hf_recipes."},
    )
    overfit_check: int = field(
        default=100,
        metadata={
            "help": "Before the run, learn some of this many training rows by heart, as many as half a minute or a "
            "tenth of the run allows, to see that data, model, learning rate and precision are sound (off: do not)."
        },
    )
    watch: dict[str, Any] | None = field(
        default=None, metadata={"help": "Thresholds of the watchers; absent ones keep their defaults."}
    )
    verify_checkpoints: Literal["off", "structure", "content", "reload"] = field(
        default="reload", metadata={"help": "How deeply each checkpoint is verified right after it was written."}
    )
    trial_save: bool = field(
        default=True,
        metadata={
            "help": "Save once after the first step, to see then whether saving works; removed when a later checkpoint "
            "is verified."
        },
    )
    evaluation: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "What `hf-recipes evaluate` compares models on: {domain, scores, function, format, schema, "
            "choices, instructions, general, tasks, rating, gate, during_training, stop, max_new_tokens, samples, "
            "batch_size}."
        },
    )
    max_label_share: float = field(
        default=0.99,
        metadata={"help": "Classification: a label that holds more of the training rows than this fails the check."},
    )
    time_limit: str | None = field(
        default=None,
        metadata={
            "help": "Save and stop before so much time has passed since the start of the command: seconds, 11h30m, or "
            "as Slurm writes it 2-12:00:00. In a Slurm job its end counts too, by itself."
        },
    )
    preemption_command: str | None = field(
        default=None,
        metadata={
            "help": "A shell command asked again and again on each machine; exit code 0 means that the machine is "
            "about to go, and the run saves and stops."
        },
    )
    preemption_poll_seconds: float = field(
        default=5.0, metadata={"help": "Seconds between two runs of preemption_command."}
    )
    preemption_grace_seconds: float = field(
        default=25.0,
        metadata={"help": "Seconds after SIGTERM within which the run ends, saved or not (schedulers kill after 30)."},
    )
    on_finish: str | None = field(
        default=None,
        metadata={
            "help": "A shell command that `hf-recipes sft` runs once when the run has succeeded (exit code 0), such as "
            "`sudo poweroff`; RUN_DIR is in its environment, and the run's exit code stays (off, empty: none)."
        },
    )
    strategy: Strategy = field(
        default="auto",
        metadata={
            "help": "How several ranks share the work; auto: as --config_file says, else what `hf-recipes plan` would "
            "choose for the devices here, else ddp."
        },
    )
    tensor_parallel_size: int | None = field(
        default=None,
        metadata={
            "help": "strategy: tp (default: all ranks of a node) or pp (default 1): ranks that share each layer's "
            "matrices; what remains is data parallel."
        },
    )
    context_parallel_size: int | None = field(
        default=None,
        metadata={
            "help": "strategy: cp: ranks that share the tokens of each row (default: all ranks of a node); what "
            "remains is data parallel."
        },
    )
    pipeline_parallel_size: int | None = field(
        default=None,
        metadata={
            "help": "strategy: pp: stages that the layers are cut into (default: as many as there are ranks for); "
            "what remains is data parallel."
        },
    )
    pipeline_schedule: Literal["1f1b", "gpipe"] = field(
        default="1f1b",
        metadata={
            "help": "strategy: pp: the order of micro-batches, of which a step has gradient_accumulation_steps: 1f1b "
            "keeps activations of as many as there are stages, gpipe of all."
        },
    )
    plan_check: Literal["on", "off"] = field(
        default="on",
        metadata={
            "help": "Estimate the memory of a step before anything is loaded, and stop where it cannot fit (off: try "
            "anyway)."
        },
    )
    num_processes: int | None = field(
        default=None, metadata={"help": "Number of ranks that must be there; a different world size stops the run."}
    )
