"""How near a form is to the merged model: logits on fixed texts, and the same greedy answers or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.generation import end_token_ids, pad_token_id
from hf_recipes.export.forms.names import Form
from hf_recipes.export.proofs.answers import NEW_TOKENS, fixed_prompts, render

# Mean KL in nats above which a form is not the model: 16 bits and 8 bits cost 1e-6 to 1e-2, 4 bits of a small model up
# to 0.2, 2 bits more; weights in wrong places (a permutation left out) cost 3 and more.
MAX_KL = {"exact": 0.1, "4bit": 1.0, "lower": 2.0}


@dataclass(frozen=True)
class Closeness:
    """`kl_mean` and `kl_max` in nats, merged against form, over `positions`; `same_top` in [0, 1]; `same_answers` of
    `answers` greedy ones."""

    positions: int
    kl_mean: float
    kl_max: float
    same_top: float
    same_answers: int
    answers: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def probe_rows(tokenizer: Any) -> list[list[int]]:
    """The fixed prompts as token ids; by the chat template where there is one."""
    return [render(tokenizer, messages) for messages in fixed_prompts()]


def write_reference(file: Path, model: Any, tokenizer: Any) -> None:
    """Let the merged model answer the prompts greedily, and write its logits on prompts and answers to `file` (.npz).

    ``prompts`` are counts of tokens; ``rows`` all token ids one after the other, ``lengths`` their counts; ``logits``
    fp32, one row a token.
    """
    import numpy as np

    prompts = probe_rows(tokenizer)
    answers = [_answer(model, tokenizer, prompt) for prompt in prompts]
    rows = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    np.savez(
        file,
        prompts=np.array([len(prompt) for prompt in prompts]),
        lengths=np.array([len(row) for row in rows]),
        rows=np.concatenate([np.array(row) for row in rows]),
        logits=np.concatenate([_logits(model, row) for row in rows]),
    )


def compare_with(file: Path, model: Any, tokenizer: Any) -> Closeness:
    """Compare `model` with the reference in `file`, on the reference's token ids."""
    import numpy as np

    with np.load(file) as reference:
        lengths, prompts = reference["lengths"].tolist(), reference["prompts"].tolist()
        rows = [part.tolist() for part in np.split(reference["rows"], np.cumsum(lengths)[:-1])]
        logits = np.concatenate([_logits(model, row) for row in rows])
        kl, same = divergence(reference["logits"], logits)
    answers = [_answer(model, tokenizer, row[:count]) for row, count in zip(rows, prompts, strict=True)]
    equal = sum(row[count:] == answer for row, count, answer in zip(rows, prompts, answers, strict=True))
    return Closeness(len(kl), float(kl.mean()), float(kl.max()), float(same.mean()), equal, len(rows))


def divergence(reference: Any, other: Any) -> tuple[Any, Any]:
    """KL(reference ‖ other) in nats and whether the likeliest token is the same, position by position.

    Args:
        reference, other: logits (positions, vocabulary); of unlike widths (a vocabulary filled up) the common part.
    """
    import torch

    width = min(reference.shape[1], other.shape[1])
    p, q = (torch.from_numpy(side[:, :width]).double().log_softmax(-1) for side in (reference, other))
    kl = (p.exp() * (p - q)).sum(-1).clamp_min(0.0)
    return kl.numpy(), (p.argmax(-1) == q.argmax(-1)).double().numpy()


def _answer(model: Any, tokenizer: Any, prompt: Sequence[int]) -> list[int]:
    """The likeliest tokens after `prompt`, up to an end token. What would bend greediness is set aside by name."""
    import torch
    from transformers import GenerationConfig

    ends = end_token_ids(model, tokenizer)
    greedy = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,
        eos_token_id=ends or None,
        pad_token_id=pad_token_id(tokenizer, ends),
    )
    ids = torch.tensor([list(prompt)], device=model.device)
    with torch.inference_mode():
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
    return output[0, len(prompt) :].tolist()


def _logits(model: Any, row: Sequence[int]) -> Any:
    import torch

    ids = torch.tensor([row], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    return logits[-len(row) :].float().cpu().numpy()


def is_too_far(form: Form, closeness: Mapping[str, Any] | None) -> str | None:
    """One sentence when `form` is further from the merged model than its bits explain; None when it is near enough."""
    limit = MAX_KL[_precision(form)]
    if closeness is None or float(closeness["kl_mean"]) <= limit:
        return None
    return (
        f"it is not the merged model: mean KL {closeness['kl_mean']:.2g} nats on fixed prompts, {limit} or less was "
        "expected of its bits; do not use it"
    )


def _precision(form: Form) -> str:
    if form.kind == "gguf" and form.variant.startswith(("q2", "q3")):
        return "lower"
    four = form.variant == "4bit" or (form.kind == "gguf" and form.variant.startswith(("q4", "iq4")))
    return "4bit" if four else "exact"
