"""hf_recipes: plan, inspect, train, watch, verify, evaluate and merge fine-tunes on the Hugging Face stack.

Names are imported on first use, so `import hf_recipes` loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hf_recipes.core.version import __version__ as __version__

if TYPE_CHECKING:
    from hf_recipes.callbacks.bad_batches import load_bad_batch as load_bad_batch
    from hf_recipes.callbacks.build import build_watchers as build_watchers
    from hf_recipes.callbacks.event_log import EventLogCallback as EventLogCallback
    from hf_recipes.callbacks.generations import GenerationWatch as GenerationWatch
    from hf_recipes.callbacks.grad_norm import GradNormWatch as GradNormWatch
    from hf_recipes.callbacks.loss_watch import LossWatch as LossWatch
    from hf_recipes.callbacks.memory_watch import MemoryWatch as MemoryWatch
    from hf_recipes.callbacks.metrics_feed import MetricGiver as MetricGiver
    from hf_recipes.callbacks.metrics_feed import feed_metrics as feed_metrics
    from hf_recipes.callbacks.non_finite import NonFiniteGuard as NonFiniteGuard
    from hf_recipes.callbacks.out_of_memory import explained_out_of_memory as explained_out_of_memory
    from hf_recipes.callbacks.overfit import OverfitWatch as OverfitWatch
    from hf_recipes.callbacks.rank_watch import RankWatch as RankWatch
    from hf_recipes.callbacks.schedule import ScheduleWatch as ScheduleWatch
    from hf_recipes.callbacks.throughput import ThroughputWatch as ThroughputWatch
    from hf_recipes.callbacks.trainable import TrainableGuard as TrainableGuard
    from hf_recipes.checkpoints.choose import last_good_checkpoint as last_good_checkpoint
    from hf_recipes.checkpoints.keeper import CheckpointKeeper as CheckpointKeeper
    from hf_recipes.checkpoints.preemption.guard import PreemptionGuard as PreemptionGuard
    from hf_recipes.checkpoints.preemption.guard import cut_evaluations as cut_evaluations
    from hf_recipes.checkpoints.verification.verify import verify_checkpoint as verify_checkpoint
    from hf_recipes.core.accelerators import find_accelerator as find_accelerator
    from hf_recipes.core.errors import CheckFailed as CheckFailed
    from hf_recipes.core.errors import Preempted as Preempted
    from hf_recipes.core.errors import UserError as UserError
    from hf_recipes.data.batching.collate import SupervisedCollator as SupervisedCollator
    from hf_recipes.data.batching.packing import pack as pack
    from hf_recipes.data.batching.packing import packed_dataset as packed_dataset
    from hf_recipes.data.choosing.near_duplicates import Signer as Signer
    from hf_recipes.data.choosing.near_duplicates import near_clusters as near_clusters
    from hf_recipes.data.choosing.near_duplicates import near_repeats as near_repeats
    from hf_recipes.data.clean.cleaner import Cleaner as Cleaner
    from hf_recipes.data.clean.config import CleanConfig as CleanConfig
    from hf_recipes.data.clean.control import strip_control_characters as strip_control_characters
    from hf_recipes.data.clean.html import strip_html as strip_html
    from hf_recipes.data.clean.language import detect_language as detect_language
    from hf_recipes.data.clean.personal import personal_data as personal_data
    from hf_recipes.data.clean.unicode_text import mend_unicode as mend_unicode
    from hf_recipes.data.inspection.inspection import inspect_data as inspect_data
    from hf_recipes.data.mixing.mix import mix_datasets as mix_datasets
    from hf_recipes.data.mixing.streaming import stream_data as stream_data
    from hf_recipes.data.prepare import prepare_data as prepare_data
    from hf_recipes.data.prepare import prepare_shard as prepare_shard
    from hf_recipes.data.reading.formats import detect_format as detect_format
    from hf_recipes.data.reading.formats import to_example as to_example
    from hf_recipes.doctor.environment.check import check_environment as check_environment
    from hf_recipes.doctor.log.diagnosis import diagnose_log as diagnose_log
    from hf_recipes.doctor.run.diagnosis import diagnose_run as diagnose_run
    from hf_recipes.evaluation.harness import run_tasks as run_tasks
    from hf_recipes.evaluation.judges.formats import format_check as format_check
    from hf_recipes.evaluation.judges.instructions import check_instructions as check_instructions
    from hf_recipes.evaluation.rating.agreement import read_ratings as read_ratings
    from hf_recipes.evaluation.rating.items import RatingItem as RatingItem
    from hf_recipes.evaluation.rating.sheet import write_rating_sheet as write_rating_sheet
    from hf_recipes.export.card.write import write_model_card as write_model_card
    from hf_recipes.export.combination import Combination as Combination
    from hf_recipes.export.merge import merge_adapter as merge_adapter
    from hf_recipes.export.parity_merge import compare_parity as compare_parity
    from hf_recipes.export.push import push_directory as push_directory
    from hf_recipes.export.serving.report import serving_report as serving_report
    from hf_recipes.models.build import build_adapter_model as build_adapter_model
    from hf_recipes.models.build import build_ia3_model as build_ia3_model
    from hf_recipes.models.build import build_lora_model as build_lora_model
    from hf_recipes.models.build import build_model as build_model
    from hf_recipes.models.build import build_partial_model as build_partial_model
    from hf_recipes.models.build import build_prefix_model as build_prefix_model
    from hf_recipes.models.build import build_qlora_model as build_qlora_model
    from hf_recipes.models.methods.lora_start import make_plain_lora as make_plain_lora
    from hf_recipes.models.methods.lora_start import start_from_data as start_from_data
    from hf_recipes.models.methods.loraplus import loraplus_optimizer as loraplus_optimizer
    from hf_recipes.models.methods.prefix import generate_with_prefix as generate_with_prefix
    from hf_recipes.models.tokenizer import load_tokenizer as load_tokenizer
    from hf_recipes.plan.memory.estimate import estimate_memory as estimate_memory
    from hf_recipes.plan.read_geometry import read_geometry as read_geometry
    from hf_recipes.plan.strategy.choose import choose_strategy as choose_strategy
    from hf_recipes.plan.trace.step import trace_step as trace_step
    from hf_recipes.profiling.recorder import StepRecorder as StepRecorder
    from hf_recipes.profiling.run import profile_recipe as profile_recipe
    from hf_recipes.recipe.resolve import load_recipe as load_recipe
    from hf_recipes.report.live import ReportCallback as ReportCallback
    from hf_recipes.report.page import write_report as write_report
    from hf_recipes.training.evaluate import evaluate_run as evaluate_run
    from hf_recipes.training.export import export_run as export_run
    from hf_recipes.training.isolation import find_isolation as find_isolation
    from hf_recipes.training.overfit.check import overfit_test as overfit_test
    from hf_recipes.training.planning import plan_recipe as plan_recipe
    from hf_recipes.training.run import train as train
    from hf_recipes.training.trainer import SupervisedTrainer as SupervisedTrainer

# Public name → the module that defines it; a test holds this against the imports above.
_EXPORTS: dict[str, str] = {
    "CheckFailed": "core.errors",
    "CheckpointKeeper": "checkpoints.keeper",
    "CleanConfig": "data.clean.config",
    "Cleaner": "data.clean.cleaner",
    "Combination": "export.combination",
    "EventLogCallback": "callbacks.event_log",
    "GenerationWatch": "callbacks.generations",
    "GradNormWatch": "callbacks.grad_norm",
    "LossWatch": "callbacks.loss_watch",
    "MemoryWatch": "callbacks.memory_watch",
    "MetricGiver": "callbacks.metrics_feed",
    "NonFiniteGuard": "callbacks.non_finite",
    "OverfitWatch": "callbacks.overfit",
    "Preempted": "core.errors",
    "PreemptionGuard": "checkpoints.preemption.guard",
    "RankWatch": "callbacks.rank_watch",
    "RatingItem": "evaluation.rating.items",
    "ReportCallback": "report.live",
    "ScheduleWatch": "callbacks.schedule",
    "Signer": "data.choosing.near_duplicates",
    "StepRecorder": "profiling.recorder",
    "SupervisedCollator": "data.batching.collate",
    "SupervisedTrainer": "training.trainer",
    "ThroughputWatch": "callbacks.throughput",
    "TrainableGuard": "callbacks.trainable",
    "UserError": "core.errors",
    "build_adapter_model": "models.build",
    "build_ia3_model": "models.build",
    "build_lora_model": "models.build",
    "build_model": "models.build",
    "build_partial_model": "models.build",
    "build_prefix_model": "models.build",
    "build_qlora_model": "models.build",
    "build_watchers": "callbacks.build",
    "check_environment": "doctor.environment.check",
    "check_instructions": "evaluation.judges.instructions",
    "choose_strategy": "plan.strategy.choose",
    "compare_parity": "export.parity_merge",
    "cut_evaluations": "checkpoints.preemption.guard",
    "detect_format": "data.reading.formats",
    "detect_language": "data.clean.language",
    "diagnose_log": "doctor.log.diagnosis",
    "diagnose_run": "doctor.run.diagnosis",
    "estimate_memory": "plan.memory.estimate",
    "evaluate_run": "training.evaluate",
    "explained_out_of_memory": "callbacks.out_of_memory",
    "export_run": "training.export",
    "feed_metrics": "callbacks.metrics_feed",
    "find_accelerator": "core.accelerators",
    "find_isolation": "training.isolation",
    "format_check": "evaluation.judges.formats",
    "generate_with_prefix": "models.methods.prefix",
    "inspect_data": "data.inspection.inspection",
    "last_good_checkpoint": "checkpoints.choose",
    "load_bad_batch": "callbacks.bad_batches",
    "load_recipe": "recipe.resolve",
    "load_tokenizer": "models.tokenizer",
    "loraplus_optimizer": "models.methods.loraplus",
    "make_plain_lora": "models.methods.lora_start",
    "mend_unicode": "data.clean.unicode_text",
    "merge_adapter": "export.merge",
    "mix_datasets": "data.mixing.mix",
    "near_clusters": "data.choosing.near_duplicates",
    "near_repeats": "data.choosing.near_duplicates",
    "overfit_test": "training.overfit.check",
    "pack": "data.batching.packing",
    "packed_dataset": "data.batching.packing",
    "personal_data": "data.clean.personal",
    "plan_recipe": "training.planning",
    "prepare_data": "data.prepare",
    "prepare_shard": "data.prepare",
    "profile_recipe": "profiling.run",
    "push_directory": "export.push",
    "read_geometry": "plan.read_geometry",
    "read_ratings": "evaluation.rating.agreement",
    "run_tasks": "evaluation.harness",
    "serving_report": "export.serving.report",
    "start_from_data": "models.methods.lora_start",
    "stream_data": "data.mixing.streaming",
    "strip_control_characters": "data.clean.control",
    "strip_html": "data.clean.html",
    "to_example": "data.reading.formats",
    "trace_step": "plan.trace.step",
    "train": "training.run",
    "verify_checkpoint": "checkpoints.verification.verify",
    "write_model_card": "export.card.write",
    "write_rating_sheet": "evaluation.rating.sheet",
    "write_report": "report.page",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'hf_recipes' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"hf_recipes.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_EXPORTS, "__version__"])
