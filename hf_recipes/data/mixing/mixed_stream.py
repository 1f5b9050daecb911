"""A mixed `datasets.IterableDataset` made of others."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise

import numpy as np
from datasets import DatasetInfo, Features, IterableDataset, Value

from hf_recipes.core.errors import UserError
from hf_recipes.data.mixing.mixed_columns import SOURCE, check_features
from hf_recipes.data.mixing.mixed_examples import Blend, MixedExamples, SampleCounts
from hf_recipes.data.mixing.sample_sizes import check_measurable


def mixed_stream(
    streams: Sequence[IterableDataset], blend: Blend, counts: Sequence[SampleCounts] = ()
) -> IterableDataset:
    """Mix `streams`, which have the names, roles and weights of `blend`, in that order.

    The result gives the same rows on any number of ranks, each of which takes every n-th; has another order after
    ``set_epoch``; and goes on after ``load_state_dict`` where ``state_dict`` was taken, reading again only the windows
    that had begun. It ends with the domain. `counts`, one a stream, follow what it gives.

    Raises:
        UserError: columns differ (seen when it is read where a stream does not know them), or a stream was split by
            node already.
    """
    for name, stream in zip(blend.names, streams, strict=True):
        if stream._distributed:
            raise UserError(f"'{name}' is split by node already: mix first, then split the mixture.")
        if stream.column_names is not None:
            check_measurable(stream.column_names, blend.unit)
    known = [(name, stream.features) for name, stream in zip(blend.names, streams, strict=True) if stream.features]
    check_features([name for name, _ in known], [features for _, features in known])
    features = None
    if len(known) == len(streams):
        columns = {key: kind for _, each in known for key, kind in each.items() if key != SOURCE}
        features = Features({**columns, SOURCE: Value("string")})
    formats = [stream._formatting for stream in streams]
    examples = MixedExamples([stream._ex_iterable for stream in streams], blend, counts)
    return IterableDataset(
        examples.shuffle_data_sources(np.random.default_rng(blend.seed)),
        info=DatasetInfo(features=features),
        formatting=formats[0] if all(one == other for one, other in pairwise(formats)) else None,
        token_per_repo_id={key: token for stream in streams for key, token in stream._token_per_repo_id.items()},
    )


def own_copy(stream: IterableDataset) -> IterableDataset:
    """The same stream with a state of its own, so that reading a mixture of it does not move `stream` itself."""
    return IterableDataset(
        deepcopy(stream._ex_iterable),
        info=stream.info.copy(),
        split=stream.split,
        formatting=stream._formatting,
        distributed=stream._distributed,
        token_per_repo_id=stream._token_per_repo_id,
    )
