"""What befalls a run in `launched_ranks`: called on each rank before it begins, each arranges for a step to come."""

from __future__ import annotations

import os
import signal


def at_step(step, act):
    """Call `act(inputs)` before the first micro-batch after `step` steps is trained on."""
    from hf_recipes.training.trainer import SupervisedTrainer

    original, done = SupervisedTrainer.training_step, []

    def training_step(self, model, inputs, *more):
        if self.state.global_step == step and not done:
            done.append(step)
            act(inputs)
        return original(self, model, inputs, *more)

    SupervisedTrainer.training_step = training_step


def killed(step):
    """The machine loses power: launcher and ranks end at once."""
    at_step(step, lambda inputs: os.killpg(os.getpgid(0), signal.SIGKILL))


def stopped(step):
    """SIGTERM, seen by the last rank alone."""
    if os.environ.get("RANK") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1):
        at_step(step, lambda inputs: os.kill(os.getpid(), signal.SIGTERM))


def bad_batch(step, rank):
    """A loss that is not a number, in one micro-batch of one rank: where this package computes it, or TRL."""
    if os.environ.get("RANK", "0") != str(rank):
        return
    from hf_recipes.training import trainer

    bad = []
    at_step(step, lambda inputs: bad.append(step))

    def spoilt(original):
        def spoilt_once(*arguments, **keys):
            loss = original(*arguments, **keys)
            if bad:
                bad.clear()
                loss = loss * float("nan")
            return loss

        return spoilt_once

    trainer.supervised_cross_entropy = spoilt(trainer.supervised_cross_entropy)
    trainer.SupervisedTrainer.compute_loss = spoilt(trainer.SupervisedTrainer.compute_loss)


def counted_rows(file):
    """Write down the rows that each rank is trained on, a line a micro-batch: step and supervised tokens of each."""
    import json

    from hf_recipes.training.trainer import SupervisedTrainer

    original = SupervisedTrainer.training_step

    def training_step(self, model, inputs, *more):
        pairs = zip(inputs["input_ids"].tolist(), inputs["labels"].tolist(), strict=True)
        rows = [[token for token, label in zip(ids, labels, strict=True) if label >= 0] for ids, labels in pairs]
        with open(f"{file}.{os.environ.get('RANK', '0')}", "a") as target:
            target.write(json.dumps([self.state.global_step, rows]) + "\n")
        return original(self, model, inputs, *more)

    SupervisedTrainer.training_step = training_step
