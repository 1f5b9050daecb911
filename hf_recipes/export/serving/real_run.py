"""Answers from vLLM itself, where an environment with it is at hand.

vLLM 0.33 asks for transformers below 5.21 and this package for 5.24 or more, so the two live in environments apart:
vLLM runs in a process of the other environment's Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.serving.adapter import highest_rank
from hf_recipes.export.serving.facts import rank_choice
from hf_recipes.export.serving.files import read_served
from hf_recipes.export.serving.model import serving_dtype

_MARK = "hf-recipes-answers:"
# Runs in vLLM's environment, where this package is not: plain code, the request on stdin, answers behind a mark (vLLM
# writes its log to stdout too).
_SCRIPT = f"""
import json, sys
from vllm import LLM, SamplingParams
asked = json.load(sys.stdin)
llm = LLM(asked["model"], dtype=asked["dtype"], **asked["engine"])
lora = None
if asked["adapter"]:
    from vllm.lora.request import LoRARequest
    lora = LoRARequest("adapter", 1, asked["adapter"])
sampling = SamplingParams(temperature=0, max_tokens=asked["max_new_tokens"])
chats = [[{{"role": "user", "content": prompt}}] for prompt in asked["prompts"]]
answers = llm.chat(chats, sampling, lora_request=lora)
print("{_MARK}" + json.dumps([answer.outputs[0].text for answer in answers]), flush=True)
"""


def run_vllm(
    directory: Path | str,
    prompts: Sequence[str],
    *,
    base: Path | str | None = None,
    python: Path | str | None = None,
    max_new_tokens: int = 64,
    timeout_seconds: float = 1800,
    engine: dict[str, Any] | None = None,
) -> list[str]:
    """Greedy answers of a merged model, or of an adapter on its base, as vLLM gives them.

    Args:
        directory: of a merged model or of an adapter.
        prompts: one user turn each; the chat template is the directory's, or the base's for an adapter.
        base: directory or Hub name of an adapter's base; by default the one that it names.
        python: the interpreter of an environment that has vLLM; by default this one.
        timeout_seconds: for loading and answering together.
        engine: further arguments of `vllm.LLM` (``{"max_model_len": 2048, "enforce_eager": True}``).

    Raises:
        UserError: that Python has no vLLM.
        CheckFailed: vLLM did not load the directory, or did not end in time.
    """
    interpreter = str(python or sys.executable)
    _require_vllm(interpreter)
    served = read_served(Path(directory))
    is_adapter = bool(served.adapter_config)
    model = str(base or served.adapter_config.get("base_model_name_or_path")) if is_adapter else str(served.directory)
    own = {"enable_lora": True, "max_lora_rank": rank_choice(highest_rank(served))} if is_adapter else {}
    asked = {
        "model": model,
        "adapter": str(served.directory) if is_adapter else None,
        "dtype": "auto" if is_adapter else serving_dtype(served),
        "engine": {**own, **(engine or {})},
        "prompts": list(prompts),
        "max_new_tokens": max_new_tokens,
    }
    return _answers(interpreter, asked, timeout_seconds)


def has_vllm(python: Path | str | None = None) -> bool:
    """Whether an environment's Python can find vLLM (it is not imported)."""
    search = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        return subprocess.run([str(python or sys.executable), "-c", search], check=False).returncode == 0
    except OSError:
        return False


def _require_vllm(interpreter: str) -> None:
    if not has_vllm(interpreter):
        raise UserError(
            f"{interpreter} has no vLLM: make an environment of its own (python -m venv vllm && vllm/bin/pip install "
            "vllm) and give its python; it asks for an older transformers than this package."
        )


def _answers(interpreter: str, asked: dict[str, Any], timeout_seconds: float) -> list[str]:
    try:
        done = subprocess.run(
            [interpreter, "-c", _SCRIPT],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"vLLM gave no answer within {timeout_seconds:,.0f} s") from None
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    last = next((line for line in reversed(done.stderr.strip().splitlines()) if line.strip()), "no message")
    raise CheckFailed(f"vLLM did not serve {asked['adapter'] or asked['model']} (code {done.returncode}): {last}")
