"""What of a layout is the launcher's to make: the rest is made by the ranks themselves, when they load the model."""

from __future__ import annotations

from dataclasses import replace

from hf_recipes.plan.layout import Layout


def by_launcher(layout: Layout) -> Layout:
    """The layout that a launcher has to make for this one.

    Tensor parallelism (and FSDP2 beside it) is transformers' ``DistributedConfig``, pipelines are this package's: for
    both a launcher starts plain ranks.
    """
    if layout.tensor * layout.pipeline == 1:
        return layout
    return replace(layout, sharding="ddp", tensor=1, pipeline=1)
