"""Optuna asked for points and told their values, one trial at a time (ask and tell), with its study in a file.

`Trainer.hyperparameter_search` trains all trials in one process, on one Trainer whose model is made anew: they share
memory, random state and whatever a crash leaves, and have no run directories to resume or to look into. Here each trial
is a run of its own, and Optuna only chooses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.sweep.axes import Axis
from hf_recipes.sweep.points import Point

FILE = "optuna.log"
_POINT = "point"


class Study:
    """A study of Optuna's TPE sampler (Bergstra et al. 2011) over the axes.

    Args:
        directory: of the sweep; the study is kept there in `FILE`.
        axes: what to choose.
        seed: of the sampler.
        less: whether the lowest value is the best.
        pruner: None, or ``hyperband`` (Li et al. 2018).

    Raises:
        UserError: Optuna is not installed, or the axes are of seeds.
    """

    def __init__(self, directory: Path, axes: Sequence[Axis], seed: int, *, less: bool, pruner: str | None) -> None:
        self.optuna = _optuna()
        if any(axis.key == "seed" for axis in axes):
            raise UserError("--seed: Optuna chooses among points, not seeds: give one seed, or --search random.")
        self.axes = axes
        optuna = self.optuna
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(directory / FILE)))
        kept = len(storage.get_all_studies()) and len(
            storage.get_all_trials(storage.get_study_id_from_name("sweep"), deepcopy=False)
        )
        self.study = optuna.create_study(
            storage=storage,
            study_name="sweep",
            load_if_exists=True,
            direction="minimize" if less else "maximize",
            # With the same seed anew, a sampler would choose again what it chose at its first start.
            sampler=optuna.samplers.TPESampler(seed=seed + kept),
            pruner=optuna.pruners.HyperbandPruner() if pruner == "hyperband" else optuna.pruners.NopPruner(),
        )

    def unfinished(self) -> list[tuple[Any, Point]]:
        """Trials that were asked for and never told: those of a sweep that was stopped or killed."""
        states = (self.optuna.trial.TrialState.RUNNING,)
        found = self.study.get_trials(deepcopy=True, states=states)
        return [(trial.number, json.loads(trial.user_attrs[_POINT])) for trial in found if _POINT in trial.user_attrs]

    def told(self) -> int:
        """Trials that have ended, however."""
        return sum(trial.state.is_finished() for trial in self.study.get_trials(deepcopy=False))

    def ask(self) -> tuple[Any, Point]:
        """The next trial and its point."""
        trial = self.study.ask()
        point = {axis.key: self._suggest(trial, axis) for axis in self.axes}
        trial.set_user_attr(_POINT, json.dumps(point))
        return trial, point

    def _suggest(self, trial: Any, axis: Axis) -> Any:
        if axis.span is None:
            # Optuna chooses among plain values only; lists go as text.
            return json.loads(trial.suggest_categorical(axis.key, [json.dumps(value) for value in axis.values]))
        if axis.span.whole:
            return trial.suggest_int(axis.key, int(axis.span.low), int(axis.span.high), log=axis.span.log)
        value = trial.suggest_float(axis.key, axis.span.low, axis.span.high, log=axis.span.log)
        return min(max(float(f"{value:.3g}"), axis.span.low), axis.span.high)

    def tell(self, trial: Any, value: float | None, state: str) -> None:
        """What came of a trial: its value, or that it was pruned or failed."""
        states = self.optuna.trial.TrialState
        if state == "ok" and value is not None:
            self.study.tell(trial, value)
        else:
            self.study.tell(trial, state=states.PRUNED if state == "pruned" else states.FAIL)

    def should_prune(self, trial: Any, points: Sequence[tuple[int, float]]) -> bool:
        """Report the losses of a running trial by per cent of its steps, and ask whether it goes on."""
        for place, loss in points:
            trial.report(loss, place)
        return bool(points) and bool(trial.should_prune())


def _optuna() -> Any:
    try:
        import optuna  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UserError("--search optuna needs Optuna: pip install 'hf-recipes[sweep]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
