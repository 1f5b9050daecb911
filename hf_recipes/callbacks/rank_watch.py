"""`RankWatch`: all ranks do the same thing, and none is late, gone or slow without being named."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from hf_recipes.callbacks.beat import EVALUATING, SAVING, TRAINING
from hf_recipes.callbacks.gradients import GradientGate
from hf_recipes.callbacks.heartbeats import HeartbeatJudge, Mailbox, RankVerdict, obey_timeout, open_default_store
from hf_recipes.callbacks.pulse import Pulse, Telling
from hf_recipes.callbacks.rank_agreement import Disagreement, RankAgreement, StartFacts
from hf_recipes.callbacks.watching import Resumable, alarm, note
from hf_recipes.core import ranks
from hf_recipes.core.bit_sums import bit_sum
from hf_recipes.core.events import EventLog, event_log
from hf_recipes.core.files import short_digest
from hf_recipes.core.log import logger
from hf_recipes.core.sharding import is_shard
from hf_recipes.core.versions import stack_versions

_SAMPLED_ROWS = 8
_TIMED_OUT = ("timed out", "timeout")  # in what gloo, nccl and the store raise


class RankWatch(Resumable, TrainerCallback):
    """Watches that the ranks of a run stay together. Does nothing in a run of one process.

    Compared on all ranks: at the start, what must be the same (see `StartFacts`); at each step, its number,
    micro-batches and, where every rank holds all parameters (DDP, ZeRO-1 and 2), the norm of the averaged gradient;
    there also, every `checksum_every` steps and at both ends, a bit-exact checksum of the trainable parameters.

    Watched by heartbeats through the process group's key-value store, on a thread of its own, without collectives: a
    rank that is late (named with the line of code in which it stands, long before the collectives' time-out), gone
    (within half a second where it was on the same machine as a rank that still lives), silent (its process stopped, or
    its machine down or cut off), slow, or through early.

    Args:
        late_seconds: a rank that has not moved for so long while others have passed it is late; ten times as long in
            evaluations, saves and the first step, at least ten times the run's median step, and at most half the
            collectives' time-out.
        checksum_every: steps between checksums of the parameters. Each costs one pass over them.

    Events: "alarm" with `detector` "ranks", `verdict` (start, step, gradient, parameters, late, gone, silent,
    ended_early, slow), and for the first four `what` and `by_rank` (values in rank order), for the others `ranks`
    (empty: all alike) and what was seen; written by rank 0, or by the next one where rank 0 is concerned. "note" when
    a late rank moves again.
    """

    detector: RankAgreement

    def __init__(self, late_seconds: float = 60.0, checksum_every: int = 100) -> None:
        self.late_seconds, self.checksum_every = late_seconds, checksum_every
        self.detector = self.new_detector()
        self._pulse: Pulse | None = None

    def settings(self) -> dict[str, Any]:
        return {"late_seconds": self.late_seconds, "checksum_every": self.checksum_every}

    def new_detector(self) -> RankAgreement:
        return RankAgreement()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(state)
        _RUNNING.stop()  # a run that an exception ended
        self._pulse = None
        if ranks.world_size() == 1:
            return
        model = kwargs["model"]
        self._gate = GradientGate.open(args, model, kwargs["optimizer"])
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        log = event_log(args.output_dir)
        told = ranks.gather((start_facts(args, state, kwargs), log.attempt, _RUNNING.count))
        _, log.attempt, count = told[0]
        facts = [each[0] for each in told]
        for found in self.detector.judge_start(state.global_step, facts):
            self._alarm(args, state, found)
        if len({each.fingerprint for each in facts}) > 1 and len({each.sampled_rows for each in facts}) == 1:
            text = "The data's fingerprints differ between ranks, but the rows looked at are the same."
            note(args, state, "ranks", text)
        # Tensors of other names or shapes cannot be compared one by one.
        self._replicated = is_replicated(model) and len({each.parameters for each in facts}) == 1
        self._compare_parameters(args, state, model)
        self._start_pulse(args, state, model, log, count)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pulse:
            self._pulse.event()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pulse:
            self._forward_seconds = 0.0
            self._micro_batch = 1
            first = self._pulse.beat.steps == 0
            self._pulse.at("forward of micro-batch 1", state.global_step + 1, TRAINING, long=first)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pulse:
            self._micro_batch += 1
            self._pulse.event(f"forward of micro-batch {self._micro_batch}")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._pulse:
            return
        self._pulse.event("comparing gradients")
        reading = self._gate.measure(state.global_step, kwargs["model"])
        for found in self.detector.judge_step(reading.by_rank, compare_norms=self._replicated):
            self._alarm(args, state, found)
        self._pulse.event("the optimizer's step")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._pulse:
            return
        self._pulse.finished_step(self._forward_seconds)
        if self._checksum_step + self.checksum_every <= state.global_step:
            self._compare_parameters(args, state, kwargs["model"])
        self._between_steps(state, control.should_evaluate, control.should_save)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pulse:
            self._pulse.event()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pulse:
            self._between_steps(state, False, control.should_save, long=True)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pulse:
            self._between_steps(state, False, False, long=True)  # other callbacks may still verify it

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._pulse:
            self._ending = control.should_training_stop
            self._between_steps(state, control.should_evaluate, control.should_save)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._pulse:
            return
        _RUNNING.stop()
        self._pulse = None
        for hook in self._hooks:
            hook.remove()
        self._compare_at_the_end(args, state, kwargs["model"])
        self._gate.close(kwargs["model"])

    def _between_steps(self, state: Any, evaluates: bool, saves: bool, long: bool = False) -> None:
        assert self._pulse is not None
        step = state.global_step + 1
        if evaluates:
            self._pulse.at("evaluating", step, EVALUATING, long=True)
        elif saves:
            self._pulse.at("saving", step, SAVING, long=True)
        else:
            self._pulse.at("between steps", step, long=long)
        if self._ending:
            self._pulse.ending()

    def _start_pulse(self, args: Any, state: Any, model: nn.Module, log: EventLog, count: int) -> None:
        def tell(verdict: RankVerdict) -> None:
            kind = "note" if verdict.kind == "moving" else "alarm"
            values = {"verdict": verdict.kind, "ranks": list(verdict.ranks), **verdict.values}
            log.write(kind, verdict.step, detector="ranks", message=verdict.sentence, **values)
            # Only errors of the ranks above 0 reach the console, and this one has nobody else to say it.
            (logger.info if kind == "note" else logger.error if log.rank else logger.warning)(verdict.sentence)

        def tell_problem(text: str) -> None:
            log.write("note", state.global_step, detector="ranks", message=text)

        try:
            store = open_default_store(f"hf_recipes/ranks/{count}")
        except Exception as error:  # a private name of torch: whatever becomes of it, the run goes on
            note(
                args, state, "ranks", f"Late and lost ranks are not watched: no store to send heartbeats by ({error})."
            )
            store = None
        self._mailbox = Mailbox(store or torch.distributed.HashStore(), ranks.world_size())
        self._has_store = store is not None
        if args.use_cpu:
            obey_timeout(float(args.ddp_timeout))
        judge = HeartbeatJudge(self.late_seconds, float(args.ddp_timeout))
        telling = Telling(tell, tell_problem)
        self._pulse = Pulse(self._mailbox, judge, ranks.rank(), state.global_step + 1, telling)
        self._hooks = [
            model.register_forward_pre_hook(self._begin_forward),
            model.register_forward_hook(self._end_forward),
        ]
        self._forward_seconds, self._micro_batch, self._ending = 0.0, 1, False
        _RUNNING.start(self._pulse)

    # Side effects on purpose: kept out of a compiled model's graph.
    @torch.compiler.disable
    def _begin_forward(self, module: nn.Module, _inputs: Any) -> None:
        self._forward_began = time.monotonic()

    @torch.compiler.disable
    def _end_forward(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if module.training and self._pulse:
            self._forward_seconds += time.monotonic() - self._forward_began
            self._pulse.event(f"backward of micro-batch {self._micro_batch}")

    def _compare_parameters(self, args: Any, state: Any, model: nn.Module) -> None:
        self._checksum_step = state.global_step
        if self._replicated:
            self._judge_parameters(args, state, ranks.gather(checksums(model)))

    def _compare_at_the_end(self, args: Any, state: Any, model: nn.Module) -> None:
        """Through the store: ranks that end at different steps would meet each other's collectives here."""
        if not self._replicated or not self._has_store or self._checksum_step == state.global_step:
            return
        self._mailbox.leave("end", ranks.rank(), json.dumps([state.global_step, checksums(model)]))
        if ranks.rank() != 0:
            return
        deadline = time.monotonic() + min(self.late_seconds, args.ddp_timeout / 2)
        while not (texts := self._mailbox.texts("end")) and time.monotonic() < deadline:
            time.sleep(0.02)
        ends = [json.loads(text) for text in texts.values()]
        if texts and len({step for step, _ in ends}) == 1:
            self._judge_parameters(args, state, [sums for _, sums in ends])

    def _judge_parameters(self, args: Any, state: Any, sums: list[list[int]]) -> None:
        if found := self.detector.judge_parameters(state.global_step, sums, self._names):
            self._alarm(args, state, found)

    def _alarm(self, args: Any, state: Any, found: Disagreement) -> None:
        values = {"verdict": found.kind, "what": found.what, "by_rank": found.values}
        alarm(args, state, found.step, "ranks", found.sentence, **values)


class _Running:
    """The pulse of this process's run; there is one at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.pulse: Pulse | None = None

    def start(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self.count += 1
        pulse.start(ranks.barrier)

    def stop(self) -> None:
        if self.pulse is not None:
            self.pulse.stop()
            self.pulse = None


_RUNNING = _Running()


def describe_missing_ranks() -> str | None:
    """Which rank is gone, or silent, for code whose collective has just raised; after a time-out, where all ranks were
    last seen; None when nothing is known.

    Takes some seconds, for a rank of another machine to be known not to beat any more. The alarm is written by this
    too, where it was not yet.
    """
    if _RUNNING.pulse is None:
        return None
    error = str(sys.exception() or "").lower()
    _RUNNING.pulse.last_look("lost")
    timed_out = any(sign in error for sign in _TIMED_OUT)
    return _RUNNING.pulse.missing or (_RUNNING.pulse.places() if timed_out else None)


@contextmanager
def long_phase(place: str) -> Iterator[None]:
    """Say that this rank does something that may last (generating samples, verifying a file), so it is not late soon.

    Does nothing where no `RankWatch` runs.
    """
    pulse = _RUNNING.pulse
    if pulse is None:
        yield
        return
    before = pulse.beat
    pulse.at(place, before.step, before.phase, long=True)
    try:
        yield
    finally:
        pulse.at(before.place, before.step, before.phase, long=before.long)


def start_facts(args: Any, state: Any, kwargs: dict[str, Any]) -> StartFacts:
    """What this rank says before the first step; `kwargs` are a callback's."""
    named = [(name, each) for name, each in kwargs["model"].named_parameters() if each.requires_grad]
    shapes = json.dumps([(name, list(each.shape)) for name, each in named])
    loader = kwargs.get("train_dataloader")
    dataset = getattr(loader, "dataset", None)
    return StartFacts(
        world_size=ranks.world_size(),
        seed=args.seed,
        data_seed=args.data_seed,
        max_steps=state.max_steps,
        micro_batches=args.gradient_accumulation_steps,
        rows=_length(dataset),
        batches=_length(loader),
        sampled_rows=_sampled_rows(dataset),
        trainable=len(named),
        parameters=short_digest(shapes),
        versions=_versions(),
        fingerprint=getattr(dataset, "_fingerprint", None),
    )


def is_replicated(model: nn.Module) -> bool:
    """Whether every rank holds all trainable parameters whole: no DTensor, no ZeRO-3 or FSDP1 shard, no tensor
    parallelism."""
    if (getattr(model, "tp_size", None) or 1) > 1:
        return False
    return not any(is_shard(each) for each in model.parameters() if each.requires_grad)


def checksums(model: nn.Module) -> list[int]:
    """A sum over the bits of each trainable tensor: differs when any one value does. One host sync."""
    sums = [bit_sum(each.detach()) for each in model.parameters() if each.requires_grad]
    if not sums:
        return []
    device = sums[-1].device
    return [int(each) for each in torch.stack([each.to(device) for each in sums]).tolist()]


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None


def _sampled_rows(dataset: Any) -> str | None:
    """A digest of some rows of a `datasets.Dataset`. Others are not asked: reading may cost, or draw random numbers."""
    if not hasattr(dataset, "_fingerprint") or not hasattr(dataset, "with_format") or not _length(dataset):
        return None
    from datasets.features.features import require_decoding

    columns = [name for name, feature in dataset.features.items() if not require_decoding(feature)]
    plain = dataset.with_format(None).select_columns(columns)  # without transforms, which may be random
    places = sorted({place * (len(plain) - 1) // (_SAMPLED_ROWS - 1) for place in range(_SAMPLED_ROWS)})
    return short_digest(repr([plain[place] for place in places]))


def _versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in stack_versions().items())
