"""NaN, infinities, loss scales. What only the curves show (NaN, zero, rising) is judged from them, not from a line."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_TORCH = "torch 2.13, provoked"

SIGNATURES: dict[str, Signature] = {
    "sampled_nan": Signature(
        needle="probability tensor contains either",
        cause="The model's logits hold NaN or infinities, seen when it was to generate: its weights are broken, or it "
        "overflowed in fp16.",
        cure="hf-recipes verify the model or checkpoint; generate in bf16 or fp32; a diverged run: an earlier "
        "checkpoint",
        example="RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        seen=_TORCH,
    ),
    "loss_scale_minimum": Signature(
        needle="Current loss scale already at minimum",
        cause="fp16 training under DeepSpeed overflowed at every step until the loss scale could not be lowered: "
        "the loss "
        "or its gradients are not finite whatever the scale.",
        cure="bf16: true instead of fp16, where the hardware has it; half the learning_rate; look at the first batches "
        "(hf-recipes inspect)",
        example="Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        seen="deepspeed 0.19 (runtime/fp16/loss_scaler.py)",
    ),
    "unscale_fp16": Signature(
        needle="Attempting to unscale FP16 gradients",
        cause="The trained weights themselves are fp16 while fp16: true scales the loss, which needs fp32 weights.",
        cure="load with dtype: fp32 (adapters: cast the trained parameters to fp32), or bf16: true with dtype: bf16",
        example="ValueError: Attempting to unscale FP16 gradients.",
        seen=_TORCH,
    ),
    "backward_nan": Signature(
        needle="returned nan values in its",
        pattern=r"Function '(?P<name>\w+)' returned nan values",
        cause="Anomaly detection found the operation whose gradient is NaN: <name>.",
        cure="look at the operation's inputs (a square root or logarithm of 0, a row that is masked altogether); clip; "
        "fp32 for that part",
        example="RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.",
        seen=_TORCH,
    ),
    "overflow_skipped": Signature(
        needle="OVERFLOW!",
        pattern=r"OVERFLOW! .*[Ss]kipping step",
        cause="fp16 overflowed and a step was skipped; some in the beginning are usual, one after another is not.",
        cure="bf16: true where the hardware has it; else half the learning_rate",
        kind="notice",
        example="[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, reducing to 2147483648",
        seen="deepspeed 0.19 (runtime/fp16/loss_scaler.py)",
    ),
    "stopped_non_finite": Signature(
        needle="not finite",
        pattern=r"(The loss|The gradient|the loss|the gradient).{0,60} (is|was) not finite",
        cause="A watcher saw a loss or gradient that is not finite.",
        cure="look at bad_batches/ of the run; half the learning_rate; hf-recipes doctor RUN_DIR ranks the causes",
        example="warning: Step 12: the loss is not finite. What to do: look at the rows of that batch; halve "
        "learning_rate "
        "(0.002 → 0.001).",
        seen="hf_recipes (callbacks/loss_watch.py)",
    ),
}
