"""One form, loaded back and measured in a process of its own: an order as JSON on stdin, the result on stdout."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from hf_recipes.evaluation.prepared import compute_dtype, load_peft_adapter
from hf_recipes.evaluation.sides import placed
from hf_recipes.models.base import load_base
from hf_recipes.models.methods import bottleneck_layer as bottleneck_layer  # PEFT reads that kind once it is imported
from hf_recipes.models.methods.prefix import generate_with_prefix
from hf_recipes.models.source import find_model

_TIMED_TOKENS = 16
_REPEATS = 3
_MAX_CONTEXT = 4096


def measure_form(order: dict[str, Any]) -> dict[str, Any]:
    """Load a form, compare it with the merged model, and measure it.

    Args:
        order: ``kind`` (``base``, ``adapter``, ``model`` or ``gguf``), ``path`` (directory, name or GGUF file) and
            ``revision``; for an adapter ``base`` and ``base_revision``; ``tokenizer``, a directory; ``reference``, a
            file of `closeness`, written if it is not there; ``measure``; ``suite``, the recipe's ``evaluation``.

    Returns:
        ``runtime``, ``dtype``, ``load_seconds``, ``memory_bytes`` (peak of loading and of generating, above what the
        process took before), ``ms_per_token`` (one sequence), ``closeness``, ``domain``, ``general``, ``cut_answers``;
        None what was not measured. A GGUF file that transformers had to dequantise has no memory and speed: they
        would not be the file's.
    """
    import transformers

    from hf_recipes.export.forms.closeness import compare_with, write_reference

    tokenizer = transformers.AutoTokenizer.from_pretrained(order["tokenizer"], trust_remote_code=False)
    runtime = _runtime(order["kind"])
    _import_what_loads(order["kind"], runtime)
    before, started = resident_bytes(), time.perf_counter()
    model = _load(order, runtime)
    result: dict[str, Any] = {"runtime": runtime, "load_seconds": time.perf_counter() - started}
    result["dtype"] = None if runtime == "llama.cpp" else compute_dtype()
    if order["measure"] and "dequantised" not in runtime:
        result["ms_per_token"] = milliseconds_per_token(model, tokenizer)
        result["memory_bytes"] = peak_bytes() - before
    if reference := order.get("reference"):
        if not Path(reference).is_file():
            write_reference(Path(reference), model, tokenizer)
        result["closeness"] = compare_with(Path(reference), model, tokenizer).to_dict()
    if runtime == "llama.cpp":
        result["same_tokens"] = _same_tokens(model, tokenizer)
    if order["measure"] and order.get("suite"):
        result |= _scores(model, tokenizer, order["suite"])
    if runtime == "llama.cpp":
        model.close()
    return result


def milliseconds_per_token(model: Any, tokenizer: Any) -> float:
    """Time from one token of a single answer to the next: that of an answer less that of its first token, median."""
    from transformers import GenerationConfig

    from hf_recipes.core.generation import end_token_ids, pad_token_id
    from hf_recipes.export.forms.closeness import probe_rows

    prompt = probe_rows(tokenizer)[1]
    pad = pad_token_id(tokenizer, end_token_ids(model, tokenizer))

    def seconds(tokens: int) -> float:
        import torch

        settings = GenerationConfig(
            max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, use_cache=True, pad_token_id=pad
        )
        ids = torch.tensor([prompt], device=model.device)
        started = time.perf_counter()
        with torch.inference_mode():
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        return time.perf_counter() - started

    seconds(2)  # the first call sets things up
    spans = [seconds(1 + _TIMED_TOKENS) - seconds(1) for _ in range(_REPEATS)]
    return 1000 * statistics.median(spans) / _TIMED_TOKENS


def resident_bytes() -> int:
    """Memory of this process now; on a GPU what its tensors take."""
    import psutil
    import torch

    return int(torch.cuda.memory_allocated()) if torch.cuda.is_available() else int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most memory this process took so far; on a GPU the most its tensors took."""
    import resource

    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.is_file():  # unlike ru_maxrss, not inherited from a large parent
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _runtime(kind: str) -> str:
    if kind != "gguf":
        return "transformers"
    from hf_recipes.export.forms.llama_cpp_model import llama_cpp_is_here

    return "llama.cpp" if llama_cpp_is_here() else "transformers, dequantised"


def _import_what_loads(kind: str, runtime: str) -> None:
    """So that the time of loading is that of loading: imports take seconds."""
    if runtime != "llama.cpp":  # which was imported to see whether it can be
        from transformers import AutoModelForCausalLM  # noqa: F401
    if kind == "adapter":
        import peft  # noqa: F401


def _load(order: dict[str, Any], runtime: str) -> Any:
    from transformers import GenerationConfig

    path, dtype = order["path"], compute_dtype()
    tokens = Path(order["tokenizer"])
    generation = GenerationConfig.from_pretrained(tokens) if (tokens / "generation_config.json").is_file() else None
    if runtime == "llama.cpp":
        return _load_by_llama_cpp(Path(path), generation)
    if order["kind"] == "adapter":
        base = load_base(find_model(order["base"], order.get("base_revision")), dtype=dtype)
        model = generate_with_prefix(load_peft_adapter(base, Path(path)))
    else:
        model = load_base(find_model(path, order.get("revision")), dtype=dtype)
    if generation is not None:
        model.generation_config.eos_token_id = generation.eos_token_id
    return placed(model).eval()


def _load_by_llama_cpp(file: Path, generation: Any) -> Any:
    from transformers import GenerationConfig

    from hf_recipes.export.forms.gguf_file import read_gguf_facts
    from hf_recipes.export.forms.llama_cpp_model import LlamaCppModel

    context = read_gguf_facts(file).context or _MAX_CONTEXT
    return LlamaCppModel(file, min(context, _MAX_CONTEXT), generation or GenerationConfig())


def _same_tokens(model: Any, tokenizer: Any) -> bool:
    """Whether the GGUF's own tokenizer gives the token ids of the training's, template and special tokens included."""
    from hf_recipes.export.forms.closeness import probe_rows

    rows = probe_rows(tokenizer)
    return all(model.tokenize(tokenizer.decode(row)) == row for row in rows)


def _scores(model: Any, tokenizer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict

    from hf_recipes.evaluation.compare import evaluate_model
    from hf_recipes.evaluation.suite import EvaluationSuite, draw
    from hf_recipes.training.evaluation_loaders import tokenise_rows

    suite = EvaluationSuite.from_dict(settings)
    general = draw(tokenise_rows(suite.general, tokenizer), suite.samples) if suite.general else []
    scores = evaluate_model(model, tokenizer, suite, general)
    return {
        "domain": asdict(scores.domain),
        "general": None if scores.general is None else asdict(scores.general),
        "cut_answers": scores.cut,
        "seconds_per_answer": scores.seconds_per_answer,
    }


if __name__ == "__main__":
    print(json.dumps(measure_form(json.load(sys.stdin))))
