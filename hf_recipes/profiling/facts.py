"""What is known of a profiled run: the figures that the table, the checks and the JSON are made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hf_recipes.profiling.phases import Operator, PhaseRow


@dataclass(frozen=True)
class Setting:
    """What the recipe and the machine decided, as the run had it.

    `packing` says whether rows are packed, `can_pack` whether they could be (a model that cannot keep packed samples
    apart, prefix tuning and a stream cannot), `grouped_padding_share` how much padding group_by_length would leave
    (None: not possible). `autocast` is the dtype the Trainer was asked to compute in, None without; `weights` that of
    the frozen or trained base. `micro_batch` rows, `accumulation` micro-batches a step. `threads` of this process,
    `cores` it may use and `local_ranks` that share them. `free_bytes` of the device's memory (on a CPU the machine's)
    could still be had after the run.
    """

    device: str
    device_name: str
    ranks: int
    local_ranks: int
    threads: int
    cores: int
    bf16_hardware: bool
    autocast: str | None
    weights: str
    method: str
    attention: str
    checkpointing: bool
    dropout: float
    packing: bool
    can_pack: bool
    streaming: bool
    sampling: str
    grouped_padding_share: float | None
    micro_batch: int
    accumulation: int
    workers: int
    optimizer: str
    fused_optimizer: bool
    trained_parameters: int
    free_bytes: int


@dataclass(frozen=True)
class Throughput:
    """What the timed steps got done, without the tracer; all a second, of this rank but `tokens_all_ranks`.

    `tokens` are prompt and supervised ones, `positions` the computed ones, padding included. `useful_flops` counts what
    the tokens ask for (see `hf_recipes.core.flops`), `computed_flops` what the trace saw multiplied: padding,
    recomputation and unneeded gradients included. `mfu` is useful_flops of the peak. `busy` is the part of the time in
    which the device computed (of the traced steps), on a CPU the part of its threads' time.
    """

    step_seconds: float
    tokens: float
    tokens_all_ranks: float
    supervised_tokens: float
    positions: float
    useful_flops: float
    computed_flops: float
    peak_flops: float
    peak_source: str
    mfu: float
    busy: float
    tracer_slowdown: float


@dataclass(frozen=True)
class Profile:
    """All that `hf-recipes profile` tells. Shares are from 0 to 1; `matmul_dtypes` are shares of the FLOPs."""

    recipe: str
    model: str
    steps: int
    setting: Setting
    throughput: Throughput
    phases: list[PhaseRow]
    operators: list[Operator]
    matmul_dtypes: dict[str, float]
    padding_share: float
    dropout_share: float
    attention_calls: int
    masked_attention_calls: int
    peak_bytes: int
    peak_resident_bytes: int
    trace: str | None

    def share(self, phase: str) -> float:
        """A whole phase's share of the step."""
        return next(row.share for row in self.phases if row.phase == phase and not row.part)

    @property
    def free_share(self) -> float:
        """Part of the memory this rank can have that it never used."""
        return self.setting.free_bytes / (self.setting.free_bytes + self.peak_bytes)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)
