"""`GenerationWatch`: what the model answers while it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from transformers import TrainerCallback

from hf_recipes.callbacks.answer_format import Judgement, judge_answer
from hf_recipes.callbacks.format_trend import FormatTrend
from hf_recipes.callbacks.metrics_feed import MetricGiver
from hf_recipes.callbacks.rank_watch import long_phase
from hf_recipes.callbacks.watching import Resumable, alarm, note
from hf_recipes.core.events import event_log
from hf_recipes.core.files import write_json
from hf_recipes.core.generation import continue_prompts, render_prompt
from hf_recipes.core.log import logger
from hf_recipes.core.sharding import is_shard


@dataclass(frozen=True)
class Prompt:
    """A question asked again and again: text, chat messages, or token ids; and the answer it should get, if known."""

    prompt: str | list[dict[str, Any]] | list[int]
    reference: str | None = None


class GenerationWatch(MetricGiver, Resumable, TrainerCallback):
    """Lets the model answer a few prompts greedily at every evaluation, writes down what it said, and says when the
    form of the answers gets lost.

    Rank 0 answers; the weights, the random state and the training go on as without it. Where weights are sharded over
    ranks nothing is generated, and that is told.

    Args:
        prompts: what is asked, with references where there are some.
        max_new_tokens: limit of an answer.
        judge: from answer and reference to (well-formed, why not); None for "cannot say".

    Metrics: `format_share` (well-formed among those that can be judged) of the last evaluation.

    Events: "generate" with `samples` (`prompt`, `answer`, `reference`, `ok`, `why`), `format_share`, `seconds`, `cut`;
    the same in ``generations/step-N.json``. "alarm" with `detector` "generations" when the share falls to half of its
    best, twice in a row.
    """

    detector: FormatTrend

    def __init__(
        self,
        prompts: Sequence[Prompt | str | dict[str, Any]],
        max_new_tokens: int = 64,
        judge: Callable[[str, str | None], Judgement] = judge_answer,
    ) -> None:
        self.prompts = [_prompt(each) for each in prompts]
        self.max_new_tokens, self.judge = max_new_tokens, judge
        self.detector = self.new_detector()
        self._share: float | None = None

    def settings(self) -> dict[str, Any]:
        return {"prompts": [asdict(prompt) for prompt in self.prompts], "max_new_tokens": self.max_new_tokens}

    def new_detector(self) -> FormatTrend:
        return FormatTrend()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(state)
        self._share = None
        self._last_step = -1
        self._whole = not _is_sharded(kwargs["model"])
        if not self._whole:
            note(args, state, "generations", "No samples are generated: the weights are sharded over ranks.")

    def metrics(self) -> dict[str, float]:
        """The share of well-formed answers, where any could be judged."""
        return {} if self._share is None else {"format_share": self._share}

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not self._whole or not self.prompts:
            return
        if state.global_step == self._last_step:  # an evaluation in several parts
            return
        self._last_step = state.global_step
        tokenizer = kwargs.get("processing_class")
        if tokenizer is None:
            self._whole = False
            logger.warning("No samples are generated: give the Trainer processing_class=tokenizer.")
            return
        try:
            with long_phase("generating samples"):
                answered = continue_prompts(
                    kwargs["model"],
                    tokenizer,
                    [_ids(prompt.prompt, tokenizer) for prompt in self.prompts],
                    max_new_tokens=self.max_new_tokens,
                    batch_size=len(self.prompts),
                )
        except Exception as error:  # samples are a service; the run must not die of them
            self._whole = False
            logger.warning("No more samples are generated: %s: %s", type(error).__name__, error)
            return
        samples = [self._sample(*each, tokenizer) for each in zip(self.prompts, answered.answers, strict=True)]
        judged = [sample["ok"] for sample in samples if sample["ok"] is not None]
        self._share = sum(judged) / len(judged) if judged else None
        told = {"samples": samples, "format_share": self._share, "seconds": answered.seconds, "cut": answered.cut}
        event_log(args.output_dir).write("generate", state.global_step, **told)
        directory = Path(args.output_dir) / "generations"
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / f"step-{state.global_step}.json", {"step": state.global_step, **told})
        self._judge_trend(args, state, samples)

    def _sample(self, prompt: Prompt, answer: str, tokenizer: Any) -> dict[str, Any]:
        ok, why = self.judge(answer, prompt.reference)
        text = prompt.prompt
        if not isinstance(text, str):
            text = tokenizer.decode(_ids(text, tokenizer))
        return {"prompt": text, "answer": answer, "reference": prompt.reference, "ok": ok, "why": why}

    def _judge_trend(self, args: Any, state: Any, samples: Sequence[dict[str, Any]]) -> None:
        if self._share is None or not self.detector.judge(self._share):
            return
        bad = next(sample for sample in samples if sample["ok"] is False)
        sentence = (
            f"Step {state.global_step}: {self._share:.0%} of the sample answers keep their form, at best it were "
            f"{self.detector.best:.0%}; for example one is {bad['why']}: {bad['answer'][:80]!r}. What to do: take a "
            "checkpoint from before, halve learning_rate, or raise the share of rows that show the form."
        )
        values = {"format_share": self._share, "best_format_share": self.detector.best}
        alarm(args, state, state.global_step, "generations", sentence, verdict="format", **values)


def _prompt(value: Prompt | str | dict[str, Any]) -> Prompt:
    if isinstance(value, dict):  # as `settings` writes it
        return Prompt(**value)
    return value if isinstance(value, Prompt) else Prompt(value)


def _ids(prompt: str | list[dict[str, Any]] | list[int], tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if prompt and isinstance(prompt[0], dict):
        return render_prompt(tokenizer, prompt)
    return cast(list[int], prompt)


def _is_sharded(model: Any) -> bool:
    return any(is_shard(each) for each in model.parameters())
