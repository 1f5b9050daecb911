"""`EventLogCallback`: what the Trainer reports, as lines of `events.jsonl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hf_recipes.core.data_parallel import data_parallel_ranks
from hf_recipes.core.events import event_log


class EventLogCallback(TrainerCallback):
    """Writes begin, log, eval, save and end events of rank 0 (the numbers are those of all ranks); prints nothing.

    Events: "begin" (`max_steps`, `epochs`, `world_size`, batch sizes, `resumed_from`), "log" (`loss`, `grad_norm`
    before clipping, `learning_rate`, `epoch`), "eval" (`eval_loss` and the other metrics), "save" (`checkpoint`), "end"
    (`train_runtime`, `train_loss`, `stopped_early`).
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._summary: dict[str, Any] = {}
        event_log(args.output_dir).start_attempt()
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * data_parallel_ranks(args)
        self._write(
            args,
            state,
            "begin",
            max_steps=state.max_steps,
            epochs=state.num_train_epochs,
            world_size=args.world_size,
            per_device_train_batch_size=args.per_device_train_batch_size,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            global_batch_size=batch,
            resumed_from=state.global_step or None,
        )

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "train_runtime" in logs:
            self._summary = dict(logs)
        elif not any(key.startswith("eval_") for key in logs):  # evaluations are logged too; `on_evaluate` has them
            self._write(args, state, "log", **logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write(args, state, "eval", **kwargs["metrics"])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._write(args, state, "save", checkpoint=checkpoint.name)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write(args, state, "end", **self._summary, stopped_early=state.global_step < state.max_steps)

    def _write(self, args: Any, state: Any, kind: str, **values: Any) -> None:
        if state.is_world_process_zero:
            # Names that a line carries anyway are not overwritten by a metric of the same name.
            own = {
                key: value for key, value in values.items() if key not in ("schema", "attempt", "rank", "time", "kind")
            }
            event_log(args.output_dir).write(kind, state.global_step, **own)
