"""What our metrics have in common: texts in, named shares out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_recipes.evaluation.judges.packages import needed

if TYPE_CHECKING:
    import evaluate
else:
    evaluate = needed("evaluate")

_CITATION = "hf_recipes, https://arxiv.org/abs/2311.07911 for instructions, SQuAD 1.1 for F1"


class TextMetric(evaluate.Metric):
    """A metric of texts, kept in memory: `evaluate` otherwise writes them to a cache of the user's.

    Args:
        needs_references: whether `compute` must be given references; where not, they may be given and are ignored.
        settings: of `evaluate.Metric`.
    """

    needs_references = False

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("keep_in_memory", settings.get("num_process", 1) == 1)
        super().__init__(**settings)

    def _info(self) -> Any:
        from datasets import Features, Value

        names = ["predictions", *(["references"] if self.needs_references else [])]
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation=_CITATION,
            inputs_description="\npredictions: texts, as the model wrote them.\n",
            features=Features({name: Value("string") for name in names}),
        )


def shares(flags: dict[str, list[bool]]) -> dict[str, float]:
    """The share of true flags under each name, where there are any."""
    return {name: sum(values) / len(values) for name, values in flags.items() if values}
