"""The machine as a rival: how fast a LoRA step on q and v could be if every product ran at this machine's GEMM speed.

    python benchmarks/rivals/roofline.py MODEL [--tokens 700] [--supervised 0.4] [--context 300] [--threads 1] [--bf16]

Prints one JSON line. Products counted, per useful token of a model with frozen weights:

- each linear layer of the decoder: its output, and the gradient of its input (2 products of 2 × in × out operations);
  no weight gradient. Of the first layer no gradient of the input is needed at q, k and v;
- the head: the same two, for supervised tokens only;
- LoRA: three products for each of A and B (output, gradient of the input, gradient of the weight);
- attention: 2 products forward, 4 backward, of 2 × width operations for each token seen; half of the tokens are seen.

Speeds are measured for the model's own shapes, forward and backward, `tokens` at once: the best of several blocks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LORA_RANK = 16
_BLOCKS, _BLOCK_SECONDS = 5, 0.1


@dataclass(frozen=True)
class Shapes:
    """Linear layers by (in, out) with their number, the head, LoRA's targets, and attention's width."""

    linear: Counter[tuple[int, int]]
    head: tuple[int, int]
    lora: Counter[tuple[int, int]]
    without_input_gradient: Counter[tuple[int, int]]
    attention_width: int
    layers: int


def model_shapes(config: dict[str, Any]) -> Shapes:
    """The shapes of a Llama-like decoder from its config."""
    hidden, layers, wide = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    head_size = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * head_size, config["num_key_value_heads"] * head_size
    attention = [(hidden, query), (hidden, key), (hidden, key)]
    layer = Counter([*attention, (query, hidden), (hidden, wide), (hidden, wide), (wide, hidden)])
    return Shapes(
        linear=Counter({shape: count * layers for shape, count in layer.items()}),
        head=(hidden, config["vocab_size"]),
        lora=Counter({shape: count * layers for shape, count in Counter([attention[0], attention[2]]).items()}),
        without_input_gradient=Counter(attention),
        attention_width=query,
        layers=layers,
    )


def operations(shapes: Shapes, supervised: float, context: float) -> dict[str, float]:
    """Floating-point operations per useful token, by part.

    Args:
        supervised: Share of tokens with a label.
        context: Σ length² / Σ length of the rows.
    """

    def product(shape: tuple[int, int]) -> int:
        return 2 * shape[0] * shape[1]

    linear = sum(2 * count * product(shape) for shape, count in shapes.linear.items())
    linear -= sum(count * product(shape) for shape, count in shapes.without_input_gradient.items())
    lora = sum(3 * count * 2 * LORA_RANK * (inner + outer) for (inner, outer), count in shapes.lora.items())
    return {
        "linear": linear,
        "head": 2 * product(shapes.head) * supervised,
        "lora": lora,
        "attention": 6 * shapes.layers * 2 * shapes.attention_width * context / 2,
    }


def seconds_per_token(shapes: Shapes, supervised: float, context: float, speed: dict[tuple[int, int], float]) -> float:
    """The time a token would take; LoRA and attention at the mean speed of the layers."""
    parts = operations(shapes, supervised, context)
    layer_seconds = sum(4 * count * shape[0] * shape[1] / speed[shape] for shape, count in shapes.linear.items())
    layer_seconds -= sum(
        2 * count * shape[0] * shape[1] / speed[shape] for shape, count in shapes.without_input_gradient.items()
    )
    mean_speed = parts["linear"] / layer_seconds
    return layer_seconds + parts["head"] / speed[shapes.head] + (parts["lora"] + parts["attention"]) / mean_speed


def measure_speed(shapes: Shapes, tokens: int, supervised: float, dtype: Any) -> dict[tuple[int, int], float]:
    """Operations per CPU second of one thread's worth for each shape, over the forward and the backward product."""
    import torch

    measured = {}
    for shape in {*shapes.linear, shapes.head}:
        inner, outer = shape
        rows = max(1, round(tokens * supervised)) if shape == shapes.head else tokens
        weight = torch.randn(outer, inner, dtype=dtype)
        inputs, gradients = torch.randn(rows, inner, dtype=dtype), torch.randn(rows, outer, dtype=dtype)

        def both(weight: Any = weight, inputs: Any = inputs, gradients: Any = gradients) -> None:
            torch.nn.functional.linear(inputs, weight)
            torch.mm(gradients, weight)

        measured[shape] = 4 * rows * inner * outer / best_seconds(both)
    return measured


def best_seconds(work: Callable[[], None]) -> float:
    """CPU seconds of one call: the best of several blocks of calls."""
    work()
    best = float("inf")
    for _ in range(_BLOCKS):
        calls, started, end = 0, time.process_time(), time.perf_counter() + _BLOCK_SECONDS
        while calls == 0 or time.perf_counter() < end:
            work()
            calls += 1
        best = min(best, (time.process_time() - started) / calls)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=700, help="useful tokens of a step")
    parser.add_argument("--supervised", type=float, default=0.4, help="share of them with a label")
    parser.add_argument("--context", type=float, default=300, help="Σ length² / Σ length of the rows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    shapes = model_shapes(json.loads((options.model / "config.json").read_text(encoding="utf-8")))
    speed = measure_speed(shapes, options.tokens, options.supervised, dtype)
    parts = operations(shapes, options.supervised, options.context)
    seconds = seconds_per_token(shapes, options.supervised, options.context, speed)
    print(
        json.dumps(
            {
                "tokens_per_cpu_second": 1 / seconds,
                "operations_per_token": parts,
                "operations_per_cpu_second": sum(parts.values()) / seconds,
                "by_shape": {f"{inner}x{outer}": value for (inner, outer), value in speed.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
