"""What the watchers share: state that survives a resume, the facts advice refers to, and the one way to alarm."""

from __future__ import annotations

from typing import Any, Protocol

from transformers.trainer_callback import ExportableState

from hf_recipes.callbacks.advice import RunFacts
from hf_recipes.core.events import event_log
from hf_recipes.core.log import logger


class Detector(Protocol):
    """A pure detector: JSON-safe state out and in."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Resumable(ExportableState):
    """A callback whose detector goes into `trainer_state.json` and comes back on resume.

    It takes up its state itself in `on_train_begin`, whether `restore_callback_states_from_checkpoint` is set or not;
    thresholds are those of the present run.
    """

    detector: Detector

    def settings(self) -> dict[str, Any]:
        """The arguments this callback was built with."""
        raise NotImplementedError

    def new_detector(self) -> Detector:
        """A detector that has seen nothing."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What the Trainer saves: constructor arguments, and the detector's state as an attribute."""
        return {"args": self.settings(), "attributes": {"detector_state": self.detector_state}}

    @property
    def detector_state(self) -> dict[str, Any]:
        """The detector's state as JSON-safe data; the Trainer sets it on the instance it builds at a resume."""
        return self.detector.state_dict()

    @detector_state.setter
    def detector_state(self, value: dict[str, Any]) -> None:
        self.detector.load_state_dict(value)

    def begin(self, state: Any) -> None:
        """Start afresh at step 0, else take up what the checkpoint holds."""
        self.detector = self.new_detector()
        name = type(self).__name__
        saved = (state.stateful_callbacks or {}).get(name) if state.global_step else None
        if isinstance(saved, dict) and saved:
            self.detector_state = saved["attributes"]["detector_state"]
        if (
            state.stateful_callbacks is not None
        ):  # of a checkpoint that knows no such watcher: the next save looks it up
            state.stateful_callbacks.setdefault(name, {})


def run_facts(args: Any, model: Any, max_grad_norm: float) -> RunFacts:
    """The run's own settings, for advice. A model with a PEFT configuration is not a full fine-tune."""
    return RunFacts(
        learning_rate=args.learning_rate,
        max_grad_norm=max_grad_norm,
        full_fine_tune=is_full_fine_tune(model),
        fp16=args.fp16,
    )


def is_full_fine_tune(model: Any) -> bool:
    """Whether the model carries no PEFT configuration."""
    return getattr(model, "peft_config", None) is None


def alarm(args: Any, state: Any, step: int, detector: str, sentence: str, **values: Any) -> None:
    """Warn once for all ranks and write an "alarm" event; call it alike on every rank."""
    if state.is_world_process_zero:
        logger.warning(sentence)
        event_log(args.output_dir).write("alarm", step, detector=detector, message=sentence, **values)


def note(args: Any, state: Any, detector: str, sentence: str, **values: Any) -> None:
    """Say something notable once for all ranks and write a "note" event."""
    if state.is_world_process_zero:
        logger.info(sentence)
        event_log(args.output_dir).write("note", state.global_step, detector=detector, message=sentence, **values)
