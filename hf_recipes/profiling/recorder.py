"""Measure a Trainer's own steps: some timed without the tracer, then as many with it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import TrainerCallback

from hf_recipes.core.matmul_weights import decoder_of
from hf_recipes.profiling.batches import BatchFacts, CountingCollator, take_facts
from hf_recipes.profiling.trace import PREFIX

WARM_UP_STEPS = 2


class StepRecorder(TrainerCallback):
    """Puts named ranges around the parts of each step of a `Trainer`, times steps, and traces the last ones.

    Nothing of the step is changed: the trainer's own methods are called through wrappers on the instance. A step lasts
    from the fetching of its batches to the fetching of the next, so that logging and callbacks are in it. Attach it
    before `trainer.train()`, with `max_steps` at `needed_steps(steps)`.

    After training, `seconds` and `cpu_seconds` are wall and processor time of the timed steps, `timed` and `traced` the
    micro-batches of each step, `traced_seconds` the wall time of the traced steps, and `profiler` holds their trace.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.seconds = self.cpu_seconds = self.traced_seconds = 0.0
        self.timed: list[list[BatchFacts]] = []
        self.traced: list[list[BatchFacts]] = []
        self.held_bytes = 0
        self._step = -1
        self._fetched = True
        self._open: list[Any] = []
        self.profiler: Any = None
        self._is_tracing = False
        self._started = self._cpu_started = 0.0
        self._last_callback = _AfterWatchers(self)

    @staticmethod
    def needed_steps(steps: int) -> int:
        """Steps the run must have: warm-up, timed, traced."""
        return WARM_UP_STEPS + 2 * steps

    def attach(self, trainer: Any) -> None:
        """Wrap the parts of the trainer's step, and stand around its other callbacks."""
        self._trainer = trainer
        trainer.data_collator = CountingCollator(trainer.data_collator)
        trainer.get_batch_samples = self._fetching(trainer.get_batch_samples)
        accelerator = trainer.accelerator
        for owner, name, part in (
            (trainer, "_prepare_inputs", "transfer"),
            (trainer, "compute_loss", "loss"),
            (accelerator, "backward", "backward"),
            (accelerator, "clip_grad_norm_", "clip"),
        ):
            setattr(owner, name, _ranged(part, getattr(owner, name)))
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, self)
        callbacks.append(self._last_callback)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the range of the forward pass around the decoder; what the loss computes beside it is the loss."""
        # Hooks inside a compiled model would become part of its graph.
        inner = self._trainer.model_wrapped if args.torch_compile else decoder_of(self._trainer.model)
        inner.register_forward_pre_hook(lambda *_: self.enter("forward"))
        inner.register_forward_hook(lambda *_: self.leave())

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """First of all callbacks: the optimizer's part begins, with what watchers do before the update."""
        self.enter("optimizer")
        self.enter("clip")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """First of all callbacks: the update is done."""
        self.leave()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the last step's logging, which no fetching of batches follows."""
        if state.global_step >= state.max_steps:
            self._between_steps()

    def close(self) -> None:
        """End the trace of a run that something stopped early."""
        if self._is_tracing:
            self._stop_tracing()

    def enter(self, part: str) -> None:
        """Begin a range inside the one that is open."""
        opened = record_function(PREFIX + part)
        opened.__enter__()
        self._open.append(opened)

    def leave(self) -> None:
        """End the range begun last."""
        self._open.pop().__exit__(None, None, None)

    def _fetching(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fetch)
        def fetching(*args: Any, **kwargs: Any) -> Any:
            if self._fetched:
                self._between_steps()
            with record_function(PREFIX + "data"):
                batches, items = fetch(*args, **kwargs)
            facts = [take_facts(batch) for batch in batches]
            # A stream that is at its end is asked once more for nothing: that is no step, but time of this one.
            self._fetched = bool(batches)
            if self._fetched and (phase := self._phase()) is not None:
                phase.append(facts)
            return batches, items

        return fetching

    def _phase(self) -> list[list[BatchFacts]] | None:
        if self._step < WARM_UP_STEPS:
            return None
        return self.timed if self._step < WARM_UP_STEPS + self.steps else self.traced

    def _between_steps(self) -> None:
        if self._open:
            self.leave()
        self._step += 1
        if self._step == WARM_UP_STEPS:
            self._start_clock()
        elif self._step == WARM_UP_STEPS + self.steps:
            self.seconds, self.cpu_seconds = self._stop_clock()
            self._start_tracing()
            self._start_clock()
        elif self._step == self.needed_steps(self.steps):
            self.traced_seconds, _ = self._stop_clock()
            self._stop_tracing()
            return
        self.enter("step")

    def _start_clock(self) -> None:
        _synchronize()
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def _stop_clock(self) -> tuple[float, float]:
        _synchronize()
        return time.perf_counter() - self._started, time.process_time() - self._cpu_started

    def _start_tracing(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        else:  # a CPU's allocator is only counted while it is traced
            self.held_bytes = _held_bytes(self._trainer.model, self._trainer.optimizer)
        self.profiler = profile(activities=activities, record_shapes=True, profile_memory=True)
        self.profiler.start()
        self._is_tracing = True

    def _stop_tracing(self) -> None:
        self._is_tracing = False
        self.profiler.stop()


class _AfterWatchers(TrainerCallback):
    """Last of all callbacks: what watchers do before the update ends here."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recorder.leave()


def _ranged(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def ranged(*args: Any, **kwargs: Any) -> Any:
        with record_function(PREFIX + part):
            return function(*args, **kwargs)

    return ranged


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _held_bytes(model: torch.nn.Module, optimizer: Any) -> int:
    """Bytes of weights, buffers and optimizer state."""
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *states))
