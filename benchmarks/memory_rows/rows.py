"""What is measured: one row is one short training run. `settings_of` and `layout_of` say it in the planner's terms."""

from __future__ import annotations

from dataclasses import dataclass

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import TrainingSettings

QUERY_VALUE = ("q_proj", "v_proj")
ALL_LINEAR = ("all-linear",)


@dataclass(frozen=True)
class Row:
    """One run of `steps` optimizer steps.

    Attributes:
        shape: a key of `shapes.SHAPES`.
        method: ``full``, ``lora``, ``dora``, ``qlora`` or ``partial`` (the last two decoder layers).
        tokens: of every row: no padding.
        weights: dtype of the base.
        autocast: to bfloat16.
        targets, r, dropout: of LoRA.
        supervised: share of the tokens that has labels, at the end of each row.
        sharding: ``none`` on one rank; ``ddp``, ``zero2``, ``zero3`` or ``fsdp`` on two.
    """

    shape: str
    method: str = "lora"
    batch: int = 2
    tokens: int = 256
    checkpointing: str = "off"
    weights: str = "float32"
    autocast: bool = False
    accumulation: int = 1
    optimizer: str = "adamw_torch_fused"
    attention: str = "sdpa"
    targets: tuple[str, ...] = QUERY_VALUE
    r: int = 16
    dropout: float = 0.0
    supervised: float = 1.0
    sharding: str = "none"
    ranks: int = 1
    steps: int = 2

    @property
    def name(self) -> str:
        """All that distinguishes it, readable."""
        plain = Row(self.shape)
        parts = [self.shape, self.method, f"{self.batch}x{self.tokens}", _precision(self)]
        if self.method in ("lora", "dora", "qlora"):
            parts.append("all" if self.targets == ALL_LINEAR else "qv")
        for key in ("checkpointing", "optimizer", "attention", "sharding"):
            if getattr(self, key) != getattr(plain, key):
                parts.append(str(getattr(self, key)))
        for key, letter in (("r", "r"), ("accumulation", "acc"), ("dropout", "drop"), ("supervised", "sup")):
            if getattr(self, key) != getattr(plain, key):
                parts.append(f"{letter}{getattr(self, key)}")
        return " ".join(parts)


def _precision(row: Row) -> str:
    short = {"float32": "fp32", "bfloat16": "bf16"}[row.weights]
    return f"{short}+autocast" if row.autocast else short


def settings_of(row: Row) -> TrainingSettings:
    """The row in the planner's terms."""
    adapter = row.method in ("lora", "dora", "qlora", "partial")
    widened = row.autocast and adapter  # trained weights over a 16-bit base are put in fp32
    return TrainingSettings(
        method=row.method,
        weights_dtype=row.weights,
        trained_dtype="float32" if widened or row.method in ("lora", "dora", "qlora") else row.weights,
        autocast_dtype="bfloat16" if row.autocast else None,
        quantization="nf4" if row.method == "qlora" else None,
        optimizer=row.optimizer,
        micro_batch=row.batch,
        tokens=row.tokens,
        supervised_share=row.supervised,
        accumulation=row.accumulation,
        attention=row.attention,  # type: ignore[arg-type]
        checkpointing=row.checkpointing,  # type: ignore[arg-type]
        loss="chunked",
        lora_dropout=row.dropout,
    )


def layout_of(row: Row) -> Layout:
    """The row's parallelism in the planner's terms."""
    return Layout(ranks=row.ranks, sharding=row.sharding)  # type: ignore[arg-type]


def _two(sharding: str, shape: str, method: str, **values: object) -> Row:
    return Row(shape, method, sharding=sharding, ranks=2, **values)  # type: ignore[arg-type]


ROWS: tuple[Row, ...] = (
    # Full fine-tunes, fp32.
    Row("llama-1m", "full", 8, 256),
    Row("llama-15m", "full", 4, 512),
    Row("llama-15m", "full", 4, 512, checkpointing="all"),
    Row("llama-15m", "full", 1, 2048),
    Row("llama-15m", "full", 2, 1024, attention="eager"),
    Row("llama-15m", "full", 4, 256, accumulation=4),
    Row("llama-15m", "full", 4, 256, optimizer="adamw_torch"),
    Row("llama-15m", "full", 4, 256, optimizer="sgd"),
    Row("mistral-60m", "full", 2, 256, optimizer="adafactor"),
    Row("mistral-60m", "full", 1, 256, optimizer="adamw_8bit"),
    Row("mistral-60m", "full", 4, 256, checkpointing="every_2"),
    Row("mistral-60m", "full", 4, 256, checkpointing="selective"),
    Row("qwen3-40m", "full", 4, 256),
    Row("gemma-30m", "full", 4, 256),
    Row("llama-110m", "full", 1, 256),
    Row("smollm2-135m", "full", 1, 256, checkpointing="all"),
    # Full fine-tunes under bf16 autocast, and all in bf16.
    Row("llama-1m", "full", 4, 512, autocast=True),
    Row("llama-15m", "full", 1, 512, autocast=True),
    Row("llama-15m", "full", 2, 256, autocast=True, checkpointing="all"),
    Row("llama-15m", "full", 1, 512, weights="bfloat16"),
    Row("qwen3-40m", "full", 1, 256, autocast=True, optimizer="adamw_torch"),
    # LoRA.
    Row("llama-1m", "lora", 8, 512, r=8),
    Row("llama-15m", "lora", 2, 2048, targets=ALL_LINEAR),
    Row("mistral-60m", "lora", 4, 512, dropout=0.05, targets=ALL_LINEAR),
    Row("llama-110m", "lora", 4, 256),
    Row("llama-110m", "lora", 2, 256, attention="eager", targets=ALL_LINEAR),
    Row("smollm2-135m", "lora", 2, 512),
    Row("smollm2-135m", "lora", 2, 512, checkpointing="all"),
    Row("smollm2-135m", "lora", 4, 256, targets=ALL_LINEAR, checkpointing="selective"),
    Row("smollm2-135m", "lora", 2, 512, supervised=0.3, dropout=0.05),
    Row("qwen2.5-0.5b", "lora", 1, 256),
    Row("qwen2.5-0.5b", "lora", 1, 512, checkpointing="all", targets=ALL_LINEAR),
    Row("gemma-30m", "lora", 2, 512, targets=ALL_LINEAR, checkpointing="every_2"),
    Row("llama-15m", "lora", 2, 512, weights="bfloat16", autocast=True),
    Row("mistral-60m", "lora", 1, 256, weights="bfloat16", autocast=True, targets=ALL_LINEAR, dropout=0.05),
    Row("llama-110m", "lora", 1, 128, weights="bfloat16", autocast=True, checkpointing="all"),
    Row("smollm2-135m", "lora", 1, 128, weights="bfloat16", autocast=True),
    # DoRA, QLoRA, partial.
    Row("llama-15m", "dora", 2, 512, targets=ALL_LINEAR),
    Row("mistral-60m", "dora", 2, 256, checkpointing="all"),
    Row("llama-15m", "qlora", 2, 512),
    Row("mistral-60m", "qlora", 2, 256, targets=ALL_LINEAR),
    Row("smollm2-135m", "qlora", 2, 256, targets=ALL_LINEAR, checkpointing="all"),
    Row("llama-110m", "qlora", 1, 128, weights="bfloat16", autocast=True, targets=ALL_LINEAR),
    Row("qwen2.5-0.5b", "qlora", 1, 256),
    Row("llama-110m", "partial", 2, 256),
    Row("mistral-60m", "partial", 1, 128, weights="bfloat16", autocast=True),
    # Mixtures of experts.
    Row("mixtral-50m", "full", 2, 256),
    Row("mixtral-50m", "lora", 2, 512),
    Row("qwen3-moe-30m", "full", 2, 256, checkpointing="all"),
    Row("qwen3-moe-30m", "lora", 2, 512, targets=ALL_LINEAR),
    # Two ranks.
    _two("ddp", "llama-15m", "full", batch=2, tokens=256),
    _two("ddp", "mistral-60m", "full", batch=1, tokens=256, checkpointing="all"),
    _two("ddp", "smollm2-135m", "lora", batch=1, tokens=256),
    _two("fsdp", "llama-15m", "full", batch=2, tokens=256),
    _two("fsdp", "mistral-60m", "full", batch=1, tokens=256),
    _two("zero2", "llama-15m", "full", batch=2, tokens=256),
    _two("zero3", "mistral-60m", "full", batch=1, tokens=256),
    # Chosen before they were measured, to judge the formula: nothing was mended after them.
    Row("mixtral-50m", "lora", 1, 384, targets=ALL_LINEAR),
    Row("gemma-30m", "full", 2, 384, autocast=True, checkpointing="all"),
    Row("qwen3-40m", "dora", 3, 192, dropout=0.05),
)


def rows_like(pattern: str) -> list[Row]:
    """The rows whose name contains all words of `pattern`."""
    return [row for row in ROWS if all(word in row.name.split() or word in row.name for word in pattern.split())]
