"""Whether a merged model is the adapter's: what was measured, held against what rounding costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_recipes.core.dtypes import SHORT_NAMES
from hf_recipes.export.proofs.kept_update import thinned

if TYPE_CHECKING:
    from hf_recipes.export.proofs.divergence import Distance

# Healthy merges measure 0.5 to 1.5 times the floor, and up to 3.5 where few weights decide what a tiny model says.
MAX_FLOORS, SETTLED_FLOORS = 3.0, 1.5
# The worst position is one of hundreds; healthy merges measure 0.2 to 2.5 times the floor's worst.
MAX_FLOORS_AT_WORST = 10.0
# fp32 arithmetic adds in another order, which costs tiny models 1e-16 to 1e-12 nats; more is left to large ones.
ARITHMETIC_KL_NATS = 1e-8
# What may be lacking of the adapter's effect, beside the part of rounding.
MAX_SHARE_ERROR = 0.002


def floor_of(draws: Sequence[Distance]) -> dict[str, Any]:
    """Several random roundings as one floor: means, the largest of what is largest, and what bounds go by."""
    count = len(draws)
    return {
        "draws": count,
        "kl_mean": sum(draw.kl_mean for draw in draws) / count,
        "kl_max": max(draw.kl_max for draw in draws),
        "max_abs_difference": max(draw.max_abs_difference for draw in draws),
        "rms_difference": (sum(draw.rms_difference**2 for draw in draws) / count) ** 0.5,
        "largest_kl_mean": max(draw.kl_mean for draw in draws),
        "largest_rms_difference": max(draw.rms_difference for draw in draws),
    }


def is_settled(measured: Mapping[str, Any], draw: Mapping[str, Any]) -> bool:
    """Whether one random rounding is enough: what was measured is about as large, or no number at all."""
    kl, worst = measured["kl_mean"], measured["kl_max"]
    if not math.isfinite(kl) or kl <= ARITHMETIC_KL_NATS:
        return True
    return bool(kl <= SETTLED_FLOORS * draw["kl_mean"] and worst <= MAX_FLOORS * draw["kl_max"])


def kl_bound(floor: Mapping[str, Any]) -> float:
    """The largest mean KL, in nats, that rounding is believed to cost."""
    return MAX_FLOORS * float(floor["largest_kl_mean"]) + ARITHMETIC_KL_NATS


def share_bound(result: Mapping[str, Any]) -> float | None:
    """How far `update_share` may be from 1; None when the adapter does nothing, so that no share can be told.

    Rounding has a projection on the adapter's effect of at most its own length over the effect's (Cauchy–Schwarz); it
    points in no direction, and a third of that is the most that healthy merges measure. Where it thinned out the update
    itself, up to that much of the effect is gone too: the small changes, which do the least.
    """
    effect = float(result["effect"]["rms_difference"])
    if not effect:
        return None
    return MAX_SHARE_ERROR + float(result["floor"]["largest_rms_difference"]) / effect + _thinned_out(result)


def _thinned_out(result: Mapping[str, Any]) -> float:
    kept = result.get("update_kept")
    return 0.0 if kept is None else max(0.0, 1.0 - kept)


def problems(result: Mapping[str, Any], dtype: str) -> list[str]:
    """What is wrong, a sentence part each; empty when the merged model is the adapter's.

    Args:
        result: of `proofs.logits.compare_logits`; non-finite numbers are None there.
        dtype: the merged model's, for the text.
    """
    found = []
    if result["missing_keys"] or result["unexpected_keys"]:
        names = [*result["missing_keys"], *result["unexpected_keys"]]
        found.append(
            f"transformers misses {len(result['missing_keys'])} tensors in it and does not know "
            f"{len(result['unexpected_keys'])} ({', '.join(names[:4])})"
        )
    found += [f"its tokenizer is not the trained one: {each}" for each in result["tokenizer"]]
    measured, floor = result["kl_mean"], result["floor"]
    if measured is None or floor["kl_mean"] is None:
        return [*found, "its logits hold NaN or Inf"]
    gone = _thinned_out(result) ** 2  # of KL, which goes by the square of what is lacking of the effect
    bound = kl_bound(floor) + gone * float(result["effect"]["kl_mean"])
    if not measured <= bound:
        found.append(
            f"mean KL {measured:.3g} nats, where rounding to {dtype} costs {floor['kl_mean']:.3g} and {bound:.3g} are "
            "allowed"
        )
    worst = MAX_FLOORS_AT_WORST * (
        float(floor["kl_max"]) + ARITHMETIC_KL_NATS + gone * float(result["effect"]["kl_max"])
    )
    if not result["kl_max"] <= worst:
        found.append(
            f"KL {result['kl_max']:.3g} nats at the worst position, where rounding costs {floor['kl_max']:.3g} and "
            f"{worst:.3g} are allowed"
        )
    room, share = share_bound(result), result["update_share"]
    if room is not None and not (share is not None and abs(share - 1) <= room):
        found.append(f"it does {_percent(share)} of what the adapter does to the base, ± {room:.2%} are allowed")
    if found and (thin := thinned(result.get("update_kept"), SHORT_NAMES.get(dtype, dtype))):
        found.append(thin)
    return found


def blind_spot(result: Mapping[str, Any]) -> str | None:
    """A sentence where the adapter does so little that its loss would not be noticed here."""
    if result["effect"]["kl_mean"] > kl_bound(result["floor"]):
        return None
    return (
        f"The adapter moves the model by no more than rounding does (KL {result['effect']['kl_mean']:.1e}): its logits "
        "cannot tell the merged model from the base."
    )


def lines(result: Mapping[str, Any]) -> list[str]:
    """The proof in a few lines for the terminal."""
    on = f"{result['positions']} positions of {result['prompts']} prompts and {result['samples']} samples"
    floor, effect = result["floor"], result["effect"]
    told = [
        f"logits: adapter against merged on {on}: KL {result['kl_mean']:.1e} nats (most {result['kl_max']:.1e}), same "
        f"top token {result['top1_agreement']:.2%} ({result['seconds']:.1f} s)",
        f"rounding to {result['dtype']} costs KL {floor['kl_mean']:.1e} here (most {floor['kl_max']:.1e})"
        f"{_ratio(result)}",
        f"the adapter itself moves the model by KL {effect['kl_mean']:.1e}, and the merged model does "
        f"{_percent(result['update_share'])} of that",
    ]
    told.append(_answers(result))
    if result["loss"]:
        sides = ", ".join(f"{side} {value:.4f}" for side, value in result["loss"].items())
        told.append(f"loss on what was learned of {result['samples']} samples of the data: {sides} nats a token")
    if trained := result["as_trained"]:
        told.append(
            f"against the adapter on the quantised base that training saw: KL {trained['kl_mean']:.1e} (most "
            f"{trained['kl_max']:.1e}), same top token {trained['top1_agreement']:.2%}"
        )
    return [*told, result["meaning"]]


def _ratio(result: Mapping[str, Any]) -> str:
    """Measured over floor, where the floor is not below what fp32 arithmetic itself costs."""
    floor = float(result["floor"]["kl_mean"])
    if floor < ARITHMETIC_KL_NATS:
        return ""
    return f": measured are {result['kl_mean'] / floor:.2f} of it, {MAX_FLOORS:g} are allowed"


def _answers(result: Mapping[str, Any]) -> str:
    parted = [each for each in result["generations"] if each["common_tokens"] is not None]
    text = f"{result['same_generations']} of {result['prompts']} greedy answers the same"
    for each in parted:
        kind = "a tie within rounding" if each["is_tie"] else "no tie"
        text += (
            f"; {each['prompt'][:40]!r} parts after {each['common_tokens']} tokens, where the first choice led by "
            f"{each['gap']:.2g} ({kind})"
        )
    return text


def _percent(share: float | None) -> str:
    return "an unknown part" if share is None else f"{share:.2%}"
