"""`merge_adapter` against PEFT's `merge_and_unload` + `save_pretrained`, as whole processes on the same random adapter.

    python benchmarks/merge.py MODEL [--pairs 3] [--targets all-linear]

Prints wall and CPU seconds and peak memory of each, alternating, and the medians of the paired ratios.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ADAPTER = """
import sys, torch
from hf_recipes import build_lora_model
torch.manual_seed(0)
model, tokenizer = build_lora_model(sys.argv[1], target_modules=sys.argv[3], dtype="bf16")
for name, parameter in model.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(parameter, std=0.01)
model.save_pretrained(sys.argv[2])
tokenizer.save_pretrained(sys.argv[2])
"""
OURS = """
import sys
from hf_recipes import merge_adapter
merge_adapter(sys.argv[2], base=sys.argv[1], output=sys.argv[3], dtype="bf16", proof=sys.argv[4])
"""
PEFT = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from peft import PeftModel
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
PeftModel.from_pretrained(model, sys.argv[2]).merge_and_unload().save_pretrained(sys.argv[3])
AutoTokenizer.from_pretrained(sys.argv[2]).save_pretrained(sys.argv[3])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--targets", default="all-linear")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        adapter = str(Path(directory) / "adapter")
        run(ADAPTER, options.model, adapter, options.targets)
        results: dict[str, list[tuple[float, float, float]]] = {"ours": [], "ours, tensor proof": [], "peft": []}
        for pair in range(options.pairs):
            for name, code, extra in (
                ("ours", OURS, ["off"]),
                ("ours, tensor proof", OURS, ["tensors"]),
                ("peft", PEFT, []),
            ):
                output = str(Path(directory) / f"{name}-{pair}".replace(", ", "-").replace(" ", "-"))
                results[name].append(run(code, options.model, adapter, output, *extra))
    print(f"{'':20} {'wall s':>8} {'CPU s':>8} {'peak MB':>8}   (medians of {options.pairs})")
    for name, measured in results.items():
        wall, cpu, peak = (statistics.median(values) for values in zip(*measured, strict=True))
        print(f"{name:20} {wall:8.1f} {cpu:8.1f} {peak:8.0f}")
    for name in ("ours", "ours, tensor proof"):
        pairs = list(zip(results["peft"], results[name], strict=True))
        wall, cpu, peak = (statistics.median(theirs[i] / ours[i] for theirs, ours in pairs) for i in range(3))
        print(f"PEFT / {name}: wall {wall:.2f}, CPU {cpu:.2f}, memory {peak:.2f}")


def run(code: str, *arguments: str) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak memory in MB of one child process."""
    started = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"a measured process failed with status {status}: run it by hand to see why")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, peak_megabytes(usage)


def peak_megabytes(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    main()
