"""A step's tensors without tensors: what is computed from what, how large it is and what autograd keeps of it.

A `Tape` is written once in the order of the forward pass; `run` then plays forward and backward and follows the bytes
that are alive, with Python's and autograd's rules: a value dies after its last reader unless a backward node keeps it,
a node's kept values die when it has run, gradients of the same value are added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Kinds of bytes that are told apart: what the forward pass makes, 16-bit copies of weights, gradients of parameters.
ACTIVATIONS, COPIES, GRADIENTS = "activations", "weight_copies", "gradients"


@dataclass(eq=False)
class Value:
    """A tensor: elements, bytes of one, and whether it gets a gradient. A parameter's own bytes are counted elsewhere,
    as are those of a value from outside the tape that lives on anyway."""

    count: float
    width: int
    grad: bool = True
    kind: str = ACTIVATIONS
    parameter: bool = False
    outside: bool = False

    @property
    def nbytes(self) -> float:
        """Of the tensor itself, wherever it is counted."""
        return self.count * self.width


@dataclass(eq=False)
class _Node:
    reads: tuple[Value, ...]
    output: Value | None
    kept: tuple[Value, ...]
    forward_extra: float
    backward_extra: float
    passes: bool


@dataclass(frozen=True)
class Segment:
    """What a piece of the step needs, in bytes by kind.

    Attributes:
        forward: at its fullest moment in the forward pass, its input included unless that lives outside.
        kept: from its forward to its backward pass, its output not included.
        backward: at its fullest moment in the backward pass.
        gradients: of parameters, left behind by the backward pass.
    """

    forward: Counter[str]
    kept: Counter[str]
    backward: Counter[str]
    gradients: float


@dataclass
class _Ledger:
    alive: Counter[str] = field(default_factory=Counter)
    total: float = 0.0
    peak: float = 0.0
    at_peak: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, amount: float) -> None:
        self.alive[kind] += amount  # type: ignore[assignment]
        self.total += amount
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, Counter(self.alive)

    def touch(self, extra: float) -> None:
        """For a moment there is this much more."""
        if extra > 0:
            self.add(ACTIVATIONS, extra)
            self.add(ACTIVATIONS, -extra)


class _Gradient:
    """The memory of a gradient, which several values may share."""

    __slots__ = ("kind", "nbytes", "users")

    def __init__(self, nbytes: float, kind: str = ACTIVATIONS) -> None:
        self.nbytes, self.kind, self.users = nbytes, kind, 0


class Tape:
    """Operations in the order of a forward pass."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._copies: dict[Value, Value] = {}
        self.cached_unkept = 0.0

    def operation(
        self,
        reads: Iterable[Value],
        count: float,
        width: int,
        *,
        kept: Iterable[Value] = (),
        keeps_output: bool = False,
        kind: str = ACTIVATIONS,
        forward_extra: float = 0.0,
        backward_extra: float = 0.0,
        passes: bool = False,
    ) -> Value:
        """Record one operation and return its output.

        Args:
            reads: its inputs.
            count, width: elements of the output and bytes of each.
            kept: inputs (or other values) that its backward node keeps.
            keeps_output: the backward node keeps the output.
            kind: of the output.
            forward_extra, backward_extra: bytes that are alive for a moment besides inputs and outputs.
            passes: the gradient of the inputs is that of the output, without memory of its own (additions).
        """
        reads = tuple(reads)
        output = Value(count, width, any(each.grad for each in reads), kind)
        keep = (*kept, output) if keeps_output else tuple(kept)
        self._nodes.append(_Node(reads, output, keep if output.grad else (), forward_extra, backward_extra, passes))
        return output

    def momentary(self, nbytes: float) -> None:
        """Bytes that are alive for a moment in the forward pass, with no part in the backward pass."""
        self._nodes.append(_Node((), Value(0.0, 0, grad=False), (), nbytes, 0.0, False))

    def hold(self, *values: Value) -> None:
        """Values that a local variable holds up to here."""
        self._nodes.append(_Node(values, None, (), 0.0, 0.0, False))

    def cached_copy(self, parameter: Value, width: int) -> Value:
        """A parameter in another dtype; made once on this tape where it is trained (autocast caches leaves that require
        a gradient), each time it is needed where it is frozen."""
        if parameter in self._copies:
            return self._copies[parameter]
        copy = self.operation((parameter,), parameter.count, width, kind=COPIES)
        if parameter.grad:
            self._copies[parameter] = copy
        return copy

    def run(self, output: Value, *, inputs: Sequence[Value] = (), grad_output: bool = True) -> Segment:
        """Play forward and backward.

        Args:
            output: what the next segment is given; its gradient comes from there.
            inputs: what this segment is given; theirs are the gradients it hands on.
            grad_output: the gradient of the output is a tensor of its size (False: of a scalar loss).
        """
        ledger = _Ledger()
        users = self._play_forward(ledger, output, inputs)
        kept = Counter(ledger.alive)
        kept[output.kind] -= output.nbytes if not output.outside else 0  # type: ignore[assignment]
        backward = _Ledger(alive=Counter(kept), total=sum(kept.values()))
        left = self._play_backward(backward, users, output, grad_output)
        return Segment(ledger.at_peak, kept, backward.at_peak, left)

    def run_without_grad(self, output: Value, *, inputs: Sequence[Value] = ()) -> Counter[str]:
        """The fullest moment of a forward pass that keeps nothing."""
        ledger = _Ledger()
        self._play_forward(ledger, output, inputs, keeping=False)
        return ledger.at_peak

    def _play_forward(
        self, ledger: _Ledger, output: Value, inputs: Sequence[Value], *, keeping: bool = True
    ) -> Counter[Value]:
        last = {value: index for index, node in enumerate(self._nodes) for value in node.reads}
        dies: dict[int, list[Value]] = {}
        for value, index in last.items():
            dies.setdefault(index, []).append(value)
        users: Counter[Value] = Counter()
        for value in inputs:
            ledger.add(value.kind, value.nbytes if _counted(value) else 0.0)
        caches = set(self._copies.values())
        for index, node in enumerate(self._nodes):
            if node.output is not None:
                ledger.add(node.output.kind, node.output.nbytes)
                ledger.touch(node.forward_extra)
                if keeping:
                    users.update(value for value in node.kept if _counted(value))
                if node.output not in last and node.output is not output and not users[node.output]:
                    ledger.add(node.output.kind, -node.output.nbytes)
            for value in dies.get(index, ()):
                if _counted(value) and not users[value] and value is not output and value not in caches:
                    ledger.add(value.kind, -value.nbytes)
        if keeping:  # the cache is emptied at the end of the model's forward pass only
            self.cached_unkept = sum(copy.nbytes for copy in caches if not users[copy])
        for copy in caches:
            if not users[copy]:
                ledger.add(copy.kind, -copy.nbytes)
        return users

    def _play_backward(self, ledger: _Ledger, users: Counter[Value], output: Value, grad_output: bool) -> float:
        gradients: dict[Value, _Gradient] = {}
        left = 0.0
        if grad_output:
            first = _Gradient(output.nbytes)
            first.users = 1
            gradients[output] = first
            ledger.add(ACTIVATIONS, first.nbytes)
        for node in reversed(self._nodes):
            if node.output is None or not node.output.grad:
                continue
            incoming = gradients.pop(node.output, None)
            made: list[tuple[Value, _Gradient]] = []
            for value in node.reads:
                if not value.grad:
                    continue
                if node.passes and incoming is not None and value.nbytes == incoming.nbytes:
                    made.append((value, incoming))
                    continue
                fresh = _Gradient(value.nbytes, GRADIENTS if value.parameter else ACTIVATIONS)
                ledger.add(fresh.kind, fresh.nbytes)
                made.append((value, fresh))
            ledger.touch(node.backward_extra)
            for value in node.kept:
                if _counted(value):
                    users[value] -= 1
                    if not users[value]:
                        ledger.add(value.kind, -value.nbytes)
            left += self._hand_on(ledger, gradients, made)
            if incoming is not None:
                _release(ledger, incoming)
        for gradient in gradients.values():
            _release(ledger, gradient)
        return left

    def _hand_on(
        self, ledger: _Ledger, gradients: dict[Value, _Gradient], made: list[tuple[Value, _Gradient]]
    ) -> float:
        left = 0.0
        for value, gradient in made:
            if value.parameter:
                known = value in gradients
                if known:  # a second gradient of the same parameter is added to the first
                    ledger.add(GRADIENTS, -gradient.nbytes)
                else:
                    gradients[value] = _Gradient(0.0)
                    left += gradient.nbytes
            elif value in gradients:
                old = gradients[value]
                if old.users == 1:  # added in place
                    if gradient.users == 0:
                        ledger.add(ACTIVATIONS, -gradient.nbytes)
                else:
                    total = _Gradient(value.nbytes)
                    total.users = 1
                    ledger.add(ACTIVATIONS, total.nbytes)
                    if gradient.users == 0:
                        ledger.add(ACTIVATIONS, -gradient.nbytes)
                    _release(ledger, old)
                    gradients[value] = total
            else:
                gradient.users += 1
                gradients[value] = gradient
        return left


def _counted(value: Value) -> bool:
    return not value.parameter and not value.outside


def _release(ledger: _Ledger, gradient: _Gradient) -> None:
    gradient.users -= 1
    if gradient.users <= 0 and gradient.nbytes:
        ledger.add(gradient.kind, -gradient.nbytes)
