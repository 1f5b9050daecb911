"""The questions of a performance check, answered from a profile: yes is good, no comes with what to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hf_recipes.core.dtypes import SHORT_NAMES
from hf_recipes.profiling.facts import Profile
from hf_recipes.recipe.keys import LoraMethods

BUSY_ENOUGH = 0.8
DATA_TOO_LONG = 0.05
PADDING_TOO_MUCH = 0.1
PADDING_WORTH_SAVING = 0.05
FEW_STEPS = 3
HALF_PRECISION_ENOUGH = 0.9
OPTIMIZER_TOO_LONG = 0.1
DROPOUT_TOO_LONG = 0.02
COMMUNICATION_TOO_LONG = 0.1
OTHER_TOO_LONG = 0.05
# A device is full with about so many tokens at once; with fewer, accumulating is slower than a larger micro-batch.
TOKENS_THAT_FILL = {"cuda": 4096, "cpu": 512}
MEMORY_TO_SPARE = 0.5
_HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class Answer:
    """One question with its answer; `measured` is the figure behind it, `advice` what to do, empty where it is fine."""

    question: str
    yes: bool
    measured: str
    advice: str = ""


Rule = Callable[[Profile], Answer | None]


def answers(profile: Profile) -> list[Answer]:
    """All questions that make sense for this run, in the order in which a cure is worth trying."""
    found = (rule(profile) for rule in RULES)
    return [answer for answer in found if answer is not None]


def caveat(profile: Profile) -> str:
    """A sentence about figures from too few steps to judge by; empty where they are enough."""
    if profile.steps >= FEW_STEPS:
        return ""
    timed = "Only one step was timed" if profile.steps == 1 else f"Only {profile.steps} steps were timed"
    return f"{timed}: figures and answers may differ from run to run; judge by more (--steps 10)."


def _answer(question: str, yes: bool, measured: str, advice: str) -> Answer:
    return Answer(question, yes, measured, "" if yes else advice)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def is_busy(profile: Profile) -> Answer:
    """GPU use under 80 % is the guide's sign of a run that waits for data."""
    busy, data = profile.throughput.busy, profile.share("data")
    what = "GPU" if profile.setting.device == "cuda" else "CPU"
    if data > DATA_TOO_LONG:
        cure = "it waits for data: see the next line"
    elif what == "CPU":
        cure = "the cores wait for each other or for other processes: close those; raise per_device_train_batch_size"
    else:
        cure = (
            "the host cannot launch kernels fast enough: raise per_device_train_batch_size, or try torch_compile: true"
        )
    return _answer(f"Is the {what} busy at least 80 % of the time?", busy >= BUSY_ENOUGH, _percent(busy), cure)


def is_fed(profile: Profile) -> Answer:
    """Data should be ready when the step begins."""
    share, workers = profile.share("data"), profile.setting.workers
    if profile.setting.streaming:
        cure = "`hf-recipes prepare` ahead and streaming: false, which allows dataloader_num_workers too"
    else:
        cure = f"dataloader_num_workers: {max(2, 2 * workers)}"
    return _answer(
        "Does data take less than 5 % of a step?",
        share < DATA_TOO_LONG,
        f"{_percent(share)}, dataloader_num_workers {workers}",
        cure,
    )


def is_dense(profile: Profile) -> Answer:
    """Padding is computed like tokens and teaches nothing."""
    share = profile.padding_share
    question = "Is less than 10 % of the batch padding?"
    return _answer(question, share < PADDING_TOO_MUCH, _percent(share), _less_padding(profile))


def _less_padding(profile: Profile) -> str:
    """Random batches are sorted within already, so grouping is advised only where it saves something on this data."""
    setting, grouped = profile.setting, profile.setting.grouped_padding_share
    if setting.packing:
        return "rows cannot be filled: lower max_length towards the longest sample, or turn packing off"
    cures = []
    saved = 0.0 if grouped is None else profile.padding_share - grouped
    if setting.sampling != "group_by_length" and saved > PADDING_WORTH_SAVING:
        left = f"{100 * (profile.padding_share - saved):.0f} % left; a step is then of one length"
        cures.append(f"train_sampling_strategy: group_by_length ({left})")
    if setting.can_pack:
        cures.append("packing: true")
    if setting.streaming:
        cures.append("streaming: false, which allows packing and group_by_length")
    if not cures and setting.micro_batch > 1:
        cures.append("a smaller per_device_train_batch_size with more gradient_accumulation_steps")
    return ", or ".join(cures) or "short samples are rounded up to 8 positions: nothing to mend"


def is_half_precision(profile: Profile) -> Answer:
    """Whether products really ran in 16 bit, whatever was asked for."""
    setting = profile.setting
    half = sum(profile.matmul_dtypes.get(dtype, 0.0) for dtype in _HALF)
    ran = ", ".join(
        f"{SHORT_NAMES.get(dtype, dtype)} {_percent(share)}" for dtype, share in profile.matmul_dtypes.items()
    )
    question = "Is mixed precision on, where the hardware has it?"
    if not setting.bf16_hardware and setting.device == "cpu":
        bfloat = profile.matmul_dtypes.get("bfloat16", 0.0)
        cure = "this CPU has no bf16 arithmetic and emulates it, many times slower: remove bf16 and dtype"
        return _answer(question, bfloat < 1 - HALF_PRECISION_ENOUGH, f"{ran}; this CPU has no bf16 arithmetic", cure)
    if setting.autocast is None and setting.weights == "float32":
        cure = "bf16: true" if setting.bf16_hardware else "fp16: true"
    else:
        cure = "part of the model casts its inputs up: look for it among the top operators of the trace"
    return _answer(question, half >= HALF_PRECISION_ENOUGH, f"matrix products in {ran}", cure)


def is_causal(profile: Profile) -> Answer | None:
    """With a mask SDPA leaves its causal path: more memory, and twice the attention."""
    calls, masked = profile.attention_calls, profile.masked_attention_calls
    if not calls:
        return None
    if profile.setting.method == "prefix":
        cure = "method: prefix masks its own virtual tokens: nothing to mend, or a method without them (method: lora)"
    elif profile.setting.packing:
        cure = "packed samples need a mask under sdpa: attn_implementation: flash_attention_2 on a GPU that has it"
    else:
        cure = "something passes an attention mask: right-padded causal batches need none"
    return _answer(
        "Does attention run without a mask (SDPA's causal path)?",
        masked == 0,
        f"{masked} of {calls} calls masked",
        cure,
    )


def is_not_eager(profile: Profile) -> Answer:
    """Eager attention writes the whole matrix of scores."""
    attention = profile.setting.attention
    return _answer("Is attention fused?", attention != "eager", attention, "attn_implementation: sdpa")


def recomputes_only_in_need(profile: Profile) -> Answer:
    """Checkpointing buys memory with about one more forward pass."""
    spare = profile.free_share
    state = "on" if profile.setting.checkpointing else "off"
    return _answer(
        "Is activation checkpointing off, or memory scarce?",
        not profile.setting.checkpointing or spare < MEMORY_TO_SPARE,
        f"{state}, {_percent(spare)} of memory free",
        "activation_checkpointing: false",
    )


def drops_nothing_dear(profile: Profile) -> Answer:
    """Dropout draws a random number for every activation it meets."""
    rate, share, method = profile.setting.dropout, profile.dropout_share, profile.setting.method
    key = "lora_dropout" if method in LoraMethods else "adapter_dropout" if method == "adapter" else None
    cure = f"{key}: 0" if key else "the model's own dropout, set to 0 in its config.json"
    return _answer(
        "Does dropout cost less than 2 % of a step?",
        share < DROPOUT_TOO_LONG,
        f"rate {rate:g}, at least {_percent(share)}",
        f"{cure}, unless the eval loss rises for it",
    )


def accumulates_full_batches(profile: Profile) -> Answer | None:
    """Accumulating tiny micro-batches leaves the device half empty."""
    setting = profile.setting
    if setting.accumulation == 1:
        return None
    positions = profile.throughput.positions * profile.throughput.step_seconds / setting.accumulation
    spare = profile.free_share
    full = positions >= TOKENS_THAT_FILL.get(setting.device, 4096) or spare < MEMORY_TO_SPARE
    factor = next(factor for factor in range(2, setting.accumulation + 1) if setting.accumulation % factor == 0)
    return _answer(
        "Are accumulated micro-batches as large as memory allows?",
        full,
        f"{setting.accumulation} × {positions:.0f} tokens, {_percent(spare)} of memory free",
        f"per_device_train_batch_size: {setting.micro_batch * factor}, "
        f"gradient_accumulation_steps: {setting.accumulation // factor} (the same global batch)",
    )


def updates_cheaply(profile: Profile) -> Answer:
    """The update costs the same for few tokens as for many."""
    share = profile.share("optimizer")
    fewer = ", or train fewer weights (method: lora)" if profile.setting.method in ("full", "partial") else ""
    return _answer(
        "Does the optimizer take less than 10 % of a step?",
        share < OPTIMIZER_TOO_LONG,
        f"{_percent(share)}, {profile.setting.trained_parameters:,} trained parameters",
        f"raise gradient_accumulation_steps or per_device_train_batch_size{fewer}",
    )


def is_fused(profile: Profile) -> Answer | None:
    """One kernel for the whole update; 8-bit and paged optimizers have their own."""
    setting = profile.setting
    if "adamw" not in setting.optimizer.lower() or "8bit" in setting.optimizer or "bnb" in setting.optimizer:
        return None
    return _answer("Is the optimizer fused?", setting.fused_optimizer, setting.optimizer, "optim: adamw_torch_fused")


def uses_all_cores(profile: Profile) -> Answer | None:
    """Launchers set one thread a rank, which makes runs on a CPU crawl."""
    setting = profile.setting
    if setting.device != "cpu":
        return None
    return _answer(
        "Are all cores used?",
        setting.threads * setting.local_ranks >= setting.cores,
        f"{setting.threads} threads × {setting.local_ranks} ranks on {setting.cores} cores",
        f"set OMP_NUM_THREADS={max(1, setting.cores // setting.local_ranks)}",
    )


def talks_little(profile: Profile) -> Answer | None:
    """Messages should hide behind the computation."""
    if profile.setting.ranks == 1:
        return None
    share = profile.share("communication")
    return _answer(
        "Is less than 10 % of a step spent waiting for other ranks?",
        share < COMMUNICATION_TOO_LONG,
        _percent(share),
        "raise gradient_accumulation_steps (one exchange a step), or ddp_bucket_cap_mb",
    )


def logs_little(profile: Profile) -> Answer:
    """Logging, callbacks and the scheduler are not training."""
    share = profile.share("other")
    return _answer(
        "Do logging and callbacks take less than 5 % of a step?",
        share < OTHER_TOO_LONG,
        _percent(share),
        "raise logging_steps; look at what callbacks of your own do in on_step_end",
    )


RULES: tuple[Rule, ...] = (
    is_busy,
    is_fed,
    is_dense,
    is_half_precision,
    is_causal,
    is_not_eager,
    recomputes_only_in_need,
    accumulates_full_batches,
    uses_all_cores,
    drops_nothing_dear,
    updates_cheaply,
    is_fused,
    talks_little,
    logs_little,
)
