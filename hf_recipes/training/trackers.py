"""The trackers that `report_to` names: whether they are there, and what they say when they do not work."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType

from hf_recipes.core.errors import UserError, first_line, nearest

# transformers' name of a tracker → the modules it can be had from; empty: nothing to install.
_MODULES: dict[str, tuple[str, ...]] = {
    "azure_ml": ("azureml",),
    "clearml": ("clearml",),
    "codecarbon": ("codecarbon",),
    "comet_ml": ("comet_ml",),
    "dagshub": ("dagshub",),
    "dvclive": ("dvclive",),
    "flyte": ("flytekit",),
    "kubeflow": (),
    "mlflow": ("mlflow",),
    "neptune": ("neptune",),
    "swanlab": ("swanlab",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}


def check_trackers(report_to: str | Sequence[str] | None) -> None:
    """Refuse a tracker that transformers does not know or that is not installed, before anything is read or loaded.

    Raises:
        UserError: which, and what to do.
    """
    names = [report_to] if isinstance(report_to, str) else list(report_to or ())
    for name in (name for name in names if name not in ("none", "all")):
        if name not in _MODULES:
            raise UserError(
                f"report_to: '{name}' is no tracker{nearest(name, _MODULES)}: give none, all, or of "
                f"{', '.join(_MODULES)}."
            )
        modules = _MODULES[name]
        if modules and not any(find_spec(module) for module in modules):
            raise UserError(
                f"report_to: {name} is not installed: run `pip install {modules[0].replace('_', '-')}`, or write "
                "report_to: none."
            )


def tracker_problem(error: BaseException) -> str | None:
    """One sentence for an error that a tracker raised (no login, no network, a full quota); None for all others."""
    by_module = {module: name for name, modules in _MODULES.items() for module in modules}
    package = _package_of(error.__traceback__)
    if package not in by_module:
        return None
    return f"report_to: {by_module[package]} does not work ({first_line(error)}): see to it, or write report_to: none."


def _package_of(traceback: TracebackType | None) -> str:
    """The top package of the code that raised."""
    name = ""
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    return name.partition(".")[0]
