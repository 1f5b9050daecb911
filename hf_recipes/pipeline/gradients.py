"""From the gradients of one stage to those of the run: summed over replicas, measured and clipped over all stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hf_recipes.pipeline.ranks import PipelineRanks

_BUCKET_BYTES = 25 * 2**20  # as DDP's


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor that may be shared among ranks."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def reduce_gradients(
    parameters: Iterable[nn.Parameter],
    ranks: PipelineRanks,
    *,
    tied: nn.Parameter | None = None,
    summed_over_shards: Iterable[nn.Parameter] = (),
) -> None:
    """Sum the gradients over the replicas, in place; the loss is divided by the tokens of all of them.

    Args:
        parameters: the trained ones of this stage, in an order that is the same on its replicas.
        ranks: who is who.
        tied: the embedding on the first stage, or the head on the last, where the two are one tensor: each gets the sum
            of both gradients, so that the copies stay alike.
        summed_over_shards: whole parameters whose gradients are of this rank's heads only.
    """
    if ranks.shards > 1:
        _sum(summed_over_shards, ranks.group("tp"))
    if ranks.replicas > 1:
        _sum(parameters, ranks.group("dp"))
    if tied is not None and ranks.ends is not None:
        _sum([tied], ranks.ends)


def _sum(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    gradients = [local(each.grad) for each in parameters if each.grad is not None]
    for bucket in _buckets(gradients):
        flat = torch.cat([each.reshape(-1) for each in bucket])
        dist.all_reduce(flat, group=group)
        for each, summed in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            each.copy_(summed.view_as(each))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype, of 25 MiB together or one alone."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size + tensor.nbytes > _BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


def loss_and_norm(
    loss: Tensor, parameters: Iterable[nn.Parameter], ranks: PipelineRanks, *, copy: nn.Parameter | None = None
) -> tuple[float, float]:
    """The loss of the whole step, and the norm of its gradients over all stages, on every rank, by one all-reduce.

    Args:
        loss: this pipeline's share on its last stage, zero elsewhere.
        parameters: the trained ones of this stage, gradients summed.
        ranks: who is who.
        copy: a parameter that another stage counts: the tied head on the last stage.
    """
    squares = torch.zeros((), device=loss.device)
    if ranks.replica == 0:
        for each in parameters:
            whole = not isinstance(each, DTensor)
            if each.grad is not None and each is not copy and not (whole and ranks.shard):
                squares += local(each.grad).float().square().sum()
    mine = loss.float() if ranks.shard == 0 else torch.zeros_like(squares)
    both = torch.stack([mine, squares])
    dist.all_reduce(both)
    return float(both[0]), float(both[1].sqrt())


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float, limit: float) -> None:
    """Scale gradients of norm `norm` down to `limit`, in place; as `torch.nn.utils.clip_grad_norm_`."""
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for each in parameters:
            if each.grad is not None:
                local(each.grad).mul_(factor)
