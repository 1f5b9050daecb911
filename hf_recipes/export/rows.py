"""The row-wise part of the merge: edits whose result in some rows depends on those rows of the base alone.

A block of rows fits into the processor's cache: read, widened to fp32, changed, rounded once and written, it costs one
trip to memory, and a tensor of any size costs the memory of a few blocks. The operations on a block are those of
`algebra` on the whole tensor, in the same order, so that the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import frexp, prod

import torch
from torch import Tensor

from hf_recipes.core.tensors import TensorEntry, torch_dtype
from hf_recipes.export.adapter import LoraPair
from hf_recipes.export.output import Output

BLOCK_ELEMENTS = 1 << 19
# Below this height matrix libraries take other kernels, which sum in another order than for the whole matrix.
_MIN_ROWS = 16


def is_row_wise(output: Output) -> bool:
    """Whether `output` can be made block by block: casts, whole tensors and rows put in place, vectors, and LoRA on
    linear layers and embeddings. DoRA on a transposed weight is not: its norms run across the rows."""
    if output.group or not isinstance(output.start, TensorEntry) or output.start.dtype not in ("F32", "F16", "BF16"):
        return False
    edit = output.edit
    if edit is None or edit.is_empty:
        return True
    if edit.lora:
        flat = len(edit.lora.a.shape) == 2 and len(output.spec.shape) == 2
        return flat and not (output.transposed and edit.lora.magnitude)
    if edit.scaling and edit.scaling.of_inputs and len(output.spec.shape) > 2:
        return False  # the inputs of a convolution are not the columns of its flattened rows
    return not edit.bias and not edit.combined and not edit.experts


def row_count(output: Output) -> tuple[int, int]:
    """(rows, elements of a row); a vector is a column."""
    shape = output.spec.shape
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def row_blocks(first: int, last: int, columns: int, elements: int = BLOCK_ELEMENTS) -> Iterator[slice]:
    """Rows `first` to `last` in slices of even height, of about `elements` elements and never lower than a matrix
    library needs to sum as for the whole."""
    height = max(_MIN_ROWS, elements // max(1, columns))
    count = max(1, (last - first) // height)
    edges = [first + (last - first) * number // count for number in range(count + 1)]
    yield from (slice(start, stop) for start, stop in pairwise(edges) if start < stop)


class RowEdit:
    """What an output's edit does to a block of rows; its small parts are loaded, in fp32, on `device`.

    Attributes:
        left, right: (rows, rank) and (rank, columns), whose product times `scale` is the LoRA update of the weight as
            it lies in the file; None without one.
        magnitude: (rows,) of DoRA.
        vector: of (IA)³, along the rows or the columns (`along_rows`).
        rows, indices: trained rows and which rows of the whole they replace.
    """

    def __init__(self, output: Output, device: str = "cpu") -> None:
        edit = output.edit
        self.left: Tensor | None = None
        self.right: Tensor | None = None
        self.magnitude: Tensor | None = None
        self.vector: Tensor | None = None
        self.rows: Tensor | None = None
        self._scaled_left: Tensor | None = None
        self.scale = 1.0
        if edit and edit.lora:
            self._load_pair(edit.lora, output.transposed, device)
        elif edit and edit.scaling:
            self.vector = edit.scaling.vector.load().float().reshape(-1).to(device)
            self.along_rows = output.scaled_dimension == 0
        elif edit and edit.rows:
            self.rows = edit.rows.load().float().reshape(edit.rows.shape[0], -1).to(device)
            self.indices = torch.tensor(edit.indices, device=device)

    def _load_pair(self, pair: LoraPair, transposed: bool, device: str) -> None:
        a, b = pair.a.load().float().to(device), pair.b.load().float().to(device)
        left, right = (a.T, b.T) if transposed else (b, a)
        self.left, self.right, self.scale = left, right, pair.scale
        if _scales_exactly(pair.scale):
            self._scaled_left = left * pair.scale
        if pair.magnitude:
            self.magnitude = pair.magnitude.load().float().reshape(-1).to(device)

    def apply(self, block: Tensor, rows: slice, room: Tensor, *, fused: bool = False) -> Tensor:
        """The merged rows, in fp32.

        Args:
            block: (height, columns) of the base, fp32; may be changed.
            rows: which rows of the whole it holds.
            room: for a result of the same shape.
            fused: product and sum of LoRA in one operation, which may round otherwise: the other route of the proof.
        """
        if self.left is not None and self.right is not None:
            merged = self._fused_sum(block, rows, room) if fused else self._sum(block, rows, room)
            return merged if self.magnitude is None else self._normed(merged, rows)
        if self.vector is not None:
            vector = self.vector[rows].view(-1, 1) if self.along_rows else self.vector
            return torch.mul(block, vector, out=room)
        if self.rows is not None:
            inside = (self.indices >= rows.start) & (self.indices < rows.stop)
            block.index_copy_(0, self.indices[inside] - rows.start, self.rows[inside])
        return block

    def _sum(self, block: Tensor, rows: slice, room: Tensor) -> Tensor:
        assert self.left is not None and self.right is not None
        if self._scaled_left is not None:
            return torch.mm(self._scaled_left[rows], self.right, out=room).add_(block)
        return torch.mm(self.left[rows], self.right, out=room).mul_(self.scale).add_(block)

    def _fused_sum(self, block: Tensor, rows: slice, room: Tensor) -> Tensor:
        assert self.left is not None and self.right is not None
        return torch.addmm(block, self.left[rows], self.right, alpha=self.scale, out=room)

    def _normed(self, merged: Tensor, rows: slice) -> Tensor:
        assert self.magnitude is not None
        factor = self.magnitude[rows] / torch.linalg.norm(merged, dim=1)
        return merged.mul_(factor.view(-1, 1))


def _scales_exactly(scale: float) -> bool:
    """Whether a factor of the product may as well be scaled: powers of two from 1 on round nothing anywhere."""
    return scale >= 1.0 and frexp(scale)[0] == 0.5


class Scratch:
    """Buffers for one thread, grown to the largest block so far: the base's bytes, two fp32 blocks, the result.

    The fp32 blocks lie on `device`; bytes come and go through memory of the host.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._bytes: dict[str, Tensor] = {}
        self._floats: dict[str, Tensor] = {}

    def raw(self, name: str, nbytes: int) -> tuple[Tensor, memoryview]:
        """`nbytes` of host memory, as a tensor of bytes and as a view to read into."""
        if name not in self._bytes or self._bytes[name].numel() < nbytes:
            self._bytes[name] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.device != "cpu")
        part = self._bytes[name][:nbytes]
        return part, memoryview(part.numpy())  # type: ignore[arg-type]

    def host(self, name: str, shape: tuple[int, int], dtype: str) -> tuple[Tensor, memoryview]:
        """Host memory for a block of a safetensors dtype."""
        kind = torch_dtype(dtype)
        part, view = self.raw(name, prod(shape) * kind.itemsize)
        return part.view(kind).reshape(shape), view

    def fp32(self, name: str, shape: tuple[int, int]) -> Tensor:
        """Memory on the device for a block in fp32."""
        count = prod(shape)
        if name not in self._floats or self._floats[name].numel() < count:
            self._floats[name] = torch.empty(count, dtype=torch.float32, device=self.device)
        return self._floats[name][:count].view(shape)
