"""Which items people rate: each stratum by its share, drawn with a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hf_recipes.evaluation.rating.items import RatingItem


def stratified(items: Sequence[RatingItem], count: int, seed: int) -> list[RatingItem]:
    """Draw `count` items, of each stratum as many as its share makes, in the order given.

    Places that the shares leave over go to the largest remainders; a stratum gets at least one item where there are as
    many places as strata.

    Args:
        items: with their strata.
        count: of items to draw; all where there are no more.
        seed: of the draw.
    """
    if count >= len(items):
        return list(items)
    strata: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        strata.setdefault(item.stratum, []).append(index)
    places = allotted([len(members) for members in strata.values()], count)
    # A generator for each stratum: its draw does not depend on what others there are.
    drawn = [
        index
        for (name, members), number in zip(strata.items(), places, strict=True)
        for index in random.Random(f"{seed} {name}").sample(members, number)
    ]
    return [items[index] for index in sorted(drawn)]


def allotted(sizes: Sequence[int], count: int) -> list[int]:
    """Share `count` places among strata of these sizes: by largest remainder, none above its size.

    Args:
        sizes: all positive.
        count: at most their sum.
    """
    total = sum(sizes)
    least = 1 if count >= len(sizes) else 0
    places = [max(least, count * size // total) for size in sizes]
    while sum(places) > count:  # the guaranteed ones took more than there is: back from the best served
        places[max(range(len(sizes)), key=lambda i: (places[i] > least, places[i] - count * sizes[i] / total))] -= 1
    while sum(places) < count:
        worst = max(range(len(sizes)), key=lambda i: (places[i] < sizes[i], count * sizes[i] / total - places[i]))
        places[worst] += 1
    return places


def by_prompt_length(items: Sequence[RatingItem]) -> list[RatingItem]:
    """The items with short, middle and long prompts (thirds) as their strata, for sets that have no sources."""
    ranks = {index: rank for rank, index in enumerate(sorted(range(len(items)), key=lambda i: len(items[i].prompt)))}
    names = ("short prompt", "middling prompt", "long prompt")
    return [replace(item, stratum=names[3 * ranks[index] // len(items)]) for index, item in enumerate(items)]
