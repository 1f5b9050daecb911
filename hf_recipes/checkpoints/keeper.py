"""`CheckpointKeeper`: a manifest for every checkpoint, a verification right after, and a rotation that waits for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback

from hf_recipes.checkpoints.findings import LEVELS, Findings
from hf_recipes.checkpoints.manifest import write_manifest, write_verified
from hf_recipes.checkpoints.rotate import rotate_checkpoints
from hf_recipes.checkpoints.scan import FileScan, scan_directory
from hf_recipes.checkpoints.verify import VerifyReport, judge, make_report
from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.events import event_log
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import barrier, broadcast, is_main


class CheckpointKeeper(TrainerCallback):
    """Marks each checkpoint as written (``manifest.json``) and as verified (``verified.json``); stops the run at the
    first that is not good. Works alone in any Trainer: ``Trainer(…, callbacks=[CheckpointKeeper()])``.

    Takes over `save_total_limit`, since the Trainer removes old checkpoints before the new one is verified, and by
    modification time. Rank 0 reads and writes, after a barrier; the result is shared, so all ranks go on or stop alike.

    Events: "verify" (`checkpoint`, `level`, `ok`, `bytes`, `seconds`, `problems`, `removed`); "alarm" with `detector`
    "checkpoint" when it fails.

    Args:
        level: "off" (manifest only), "structure", "content" (NaN, Inf, shapes, adapter pairs), "reload" (also compared
            bit for bit with the model in memory; where the model is sharded over ranks, content is what remains).
        save_total_limit: how many good checkpoints to keep; None: as the TrainingArguments say.
        extra: free values for the manifests (recipe hash, base model, seeds).

    Attributes:
        failed: why the last checkpoint is not good, None while all are; the same on all ranks.

    Raises:
        UserError: there is no such level.
    """

    def __init__(
        self, level: str = "reload", save_total_limit: int | None = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        if level not in ("off", *LEVELS):
            known = ", ".join(("off", *LEVELS))
            raise UserError(f"verify_checkpoints: '{level}' is none of {known}{nearest(level, ('off', *LEVELS))}.")
        self.level = level
        self.save_total_limit = save_total_limit
        self.extra = dict(extra or {})
        self.failed: str | None = None
        self._arguments_limit: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.failed = None
        if args.save_total_limit is not None:
            self._arguments_limit, args.save_total_limit = args.save_total_limit, None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        args.save_total_limit, self._arguments_limit = self._arguments_limit, None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_hyper_param_search:  # its checkpoints lie where only the search knows
            return
        barrier()  # the other ranks' random states and shards are in place
        failed = broadcast(self._keep_and_tell(args, state, kwargs.get("model")) if is_main() else None)
        if failed:
            self.failed = failed
            control.should_training_stop = True

    def _keep_and_tell(self, args: Any, state: Any, model: nn.Module | None) -> str | None:
        """Rank 0's part; whatever happens, it returns, because the other ranks wait for its answer."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        try:
            report = self._keep(checkpoint, model)
            if report is None or report.ok:
                removed = self._rotate(args, state)
                if report:
                    self._log(args, state, report, removed)
                return None
            first, *more = report.problems
            failed = f"{checkpoint.name} is not good: {first}{f' (and {len(more)} more)' if more else ''}"
            self._log(args, state, report, [])
        except OSError as error:
            failed = f"{checkpoint.name} could not be marked as complete ({error.strerror or error}): free disk space?"
        except Exception as error:
            logger.exception("Verifying %s crashed.", checkpoint)
            failed = f"verifying {checkpoint.name} crashed with {type(error).__name__}: {error}"
        logger.warning("%s. Training stops; resume from the newest good checkpoint.", failed)
        with contextlib.suppress(OSError):  # a full disk has no room for the event either
            event_log(args.output_dir).write("alarm", state.global_step, detector="checkpoint", message=failed)
        return failed

    def _keep(self, checkpoint: Path, model: nn.Module | None) -> VerifyReport | None:
        """Read the checkpoint once, write its manifest, judge what was read. None where nothing is verified."""
        begin = time.perf_counter()
        scans = scan_directory(checkpoint, values=True, hashes=True)
        manifest = write_manifest(checkpoint, self.extra, scans)
        if self.level == "off":
            return None
        findings = Findings()
        level = self.level
        judge(checkpoint, scans, manifest, findings)
        if level == "reload" and not _compare_with_live(checkpoint, scans, model, findings):
            level = "content"
        report = make_report(checkpoint, level, scans, findings, proven=True, begin=begin)
        problems = [str(problem) for problem in report.problems]
        write_verified(checkpoint, level=level, ok=report.ok, seconds=report.seconds, problems=problems)
        return report

    def _rotate(self, args: Any, state: Any) -> list[Path]:
        limit = self.save_total_limit if self.save_total_limit is not None else self._arguments_limit
        if not limit or limit < 1:
            return []
        return rotate_checkpoints(
            Path(args.output_dir),
            limit,
            state.global_step,
            state.best_model_checkpoint,
            verified_only=self.level != "off",
        )

    def _log(self, args: Any, state: Any, report: VerifyReport, removed: list[Path]) -> None:
        for note in report.notes:
            logger.info("%s: %s", report.directory.name, note)
        event_log(args.output_dir).write(
            "verify",
            state.global_step,
            checkpoint=report.directory.name,
            level=report.level,
            ok=report.ok,
            bytes=report.checked_bytes,
            seconds=report.seconds,
            problems=[str(problem) for problem in report.problems],
            notes=report.notes,
            removed=[path.name for path in removed],
        )


def _compare_with_live(
    checkpoint: Path, scans: Mapping[str, FileScan], model: nn.Module | None, findings: Findings
) -> bool:
    """Compare with the model in memory; False where it is not whole in this process."""
    from hf_recipes.checkpoints.reload import check_reload, live_tensors

    stored = {name for scan in scans.values() for name in scan.tensors or ()}
    live = live_tensors(model, stored) if model is not None else None
    if live is None:
        findings.note("The model is sharded over ranks: its values are checked, but not compared with memory.")
        return False
    check_reload(checkpoint, scans, findings, live)
    return True
