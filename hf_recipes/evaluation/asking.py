"""One model asked everything that is not answered yet: lines for its answer file, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.generation import Answer, answer_batches, render_prompt
from hf_recipes.evaluation.identity import digest
from hf_recipes.evaluation.judges.choices import ChoiceRow
from hf_recipes.evaluation.judging import Judges, judge_choices, judge_instructions
from hf_recipes.evaluation.kept import Line
from hf_recipes.evaluation.latency import measure_latency
from hf_recipes.evaluation.likelihood import TokenisedRow, continuation, nats_in_batches, row_nats, supervised_tokens
from hf_recipes.evaluation.rows import DomainRow, InstructionRow
from hf_recipes.evaluation.task_lines import task_key, task_lines

Row = DomainRow | InstructionRow
LATENCY_KEY = "latency"


@dataclass(frozen=True)
class Questions:
    """The rows of a suite, read and drawn; `general` in the tokens of the model's own tokenizer."""

    domain: Sequence[DomainRow] = ()
    instructions: Sequence[InstructionRow] = ()
    choices: Sequence[ChoiceRow] = ()
    general: Sequence[TokenisedRow] = ()
    tasks: Sequence[str] = ()
    documents: int = 0  # of each task

    def keys(self) -> list[str]:
        """The key of every line there will be, in order, the latency's last where something is generated."""
        return [
            *map(row_key, self.generated),
            *map(choice_key, self.choices),
            *map(general_key, self.general),
            *(task_key(task, self.documents) for task in self.tasks),
            *([LATENCY_KEY] if self.generated else []),
        ]

    @property
    def generated(self) -> list[Row]:
        """The rows that are answered in words."""
        return [*self.domain, *self.instructions]


@dataclass(frozen=True)
class Share:
    """Every `of`-th of the rows not answered yet, from `rank` on: what one of several processes does."""

    rank: int = 0
    of: int = 1

    def take(self, rows: Sequence[Any]) -> list[Any]:
        """Its part of `rows`."""
        return list(rows[self.rank :: self.of])


def row_key(row: Row) -> str:
    """Names a generated answer: the same prompt has the same one, wherever in a file it stands."""
    tools = row.tools if isinstance(row, DomainRow) else None
    return f"{_part(row)}-{digest([row.messages, tools] if tools else row.messages)}"


def choice_key(row: ChoiceRow) -> str:
    """Names a question: another order of choices is another question."""
    return f"choices-{digest([row.messages, row.prompt, row.choices, row.answer_index])}"


def general_key(row: TokenisedRow) -> str:
    """Names a row of tokens by its ids and labels."""
    return f"general-{digest([list(row['input_ids']), list(row['labels'])])}"


def ask(
    model: Any,
    tokenizer: Any,
    judges: Judges,
    questions: Questions,
    done: Iterable[str],
    write: Callable[[list[Line]], None],
    share: Share = Share(),
) -> None:
    """Ask a model the rows whose keys are not `done`, and hand over the lines of each batch when it is done.

    Args:
        model: a causal LM on its device.
        tokenizer: with the chat template that the model knows.
        judges: of the suite, which also says how many tokens, rows at once, and what ends an answer.
        questions: all rows.
        done: keys of lines that are there already.
        write: takes lines; what it has taken need not be asked again.
        share: of the rows left, with several processes.
    """
    known = set(done)

    def left(rows: Sequence[Any], key: Callable[[Any], str]) -> list[Any]:
        missing = {key(row): row for row in rows if key(row) not in known}
        return share.take(list(missing.values()))

    for rows in (left(questions.domain, row_key), left(questions.instructions, row_key)):
        for lines in _generated(model, tokenizer, judges, rows):
            write(lines)
    general = left(questions.general, general_key)
    for batch in nats_in_batches(model, general) if general else ():
        write([_general_line(general[index], nats) for index, nats in batch.items()])
    choices = left(questions.choices, choice_key)
    for start in range(0, len(choices), judges.suite.batch_size):
        write(_choice_lines(model, tokenizer, choices[start : start + judges.suite.batch_size]))
    for task in left(questions.tasks, lambda task: task_key(task, questions.documents)):
        write(task_lines(model, tokenizer, judges.suite, task))
    if questions.generated and LATENCY_KEY not in known and share.rank == 0:
        prompts = [_prompt(tokenizer, row) for row in questions.generated]
        write([{"part": "latency", "key": LATENCY_KEY, **asdict(measure_latency(model, tokenizer, prompts))}])


def judged(line: Mapping[str, Any], row: Row, judges: Judges) -> Line:
    """A kept answer with the verdicts of the present judges: answers outlive a change of what is asked of them."""
    if isinstance(row, DomainRow):
        fresh = {"line": row.number, "reference": row.reference, "references": list(row.references)}
        return {**line, **fresh, **judges.domain(line["answer"], row)}
    return {**line, "line": row.number, **judge_instructions(line["answer"], row)}


def _generated(model: Any, tokenizer: Any, judges: Judges, rows: Sequence[Row]) -> Iterator[list[Line]]:
    suite = judges.suite
    prompts = [_prompt(tokenizer, row) for row in rows]
    for batch in answer_batches(
        model,
        tokenizer,
        prompts,
        max_new_tokens=suite.max_new_tokens,
        batch_size=suite.batch_size,
        stop=suite.stop,
    ):
        lines = {index: _answer_line(rows[index], answer) for index, answer in batch.items()}
        try:
            yield [judged(line, rows[index], judges) for index, line in lines.items()]
        except UserError:  # of the user's own function: the answers are kept, and judged when it is mended
            yield list(lines.values())
            raise


def _answer_line(row: Row, answer: Answer) -> Line:
    return {
        "part": _part(row),
        "key": row_key(row),
        "line": row.number,
        "prompt": row.messages,
        "answer": answer.text,
        "tokens": answer.tokens,
        "ended": answer.ended,
        "seconds": answer.seconds,
    }


def _prompt(tokenizer: Any, row: Row) -> list[int]:
    return render_prompt(tokenizer, row.messages, row.tools if isinstance(row, DomainRow) else None)


def _part(row: Row) -> str:
    return "domain" if isinstance(row, DomainRow) else "instructions"


def _general_line(row: TokenisedRow, nats: float) -> Line:
    return {"part": "general", "key": general_key(row), "nats": nats, "tokens": supervised_tokens(row["labels"])}


def _choice_lines(model: Any, tokenizer: Any, rows: Sequence[ChoiceRow]) -> list[Line]:
    nats = iter(row_nats(model, [_choice_tokens(tokenizer, row, choice) for row in rows for choice in row.choices]))
    return [_choice_line(row, [-next(nats) for _ in row.choices]) for row in rows]


def _choice_line(row: ChoiceRow, loglikelihoods: list[float]) -> Line:
    line: Line = {
        "part": "choices",
        "key": choice_key(row),
        "line": row.number,
        "prompt": row.messages or row.prompt,
        "choices": list(row.choices),
        "answer_index": row.answer_index,
        "loglikelihoods": loglikelihoods,
    }
    return {**line, **judge_choices(line)}


def _choice_tokens(tokenizer: Any, row: ChoiceRow, choice: str) -> TokenisedRow:
    """After a chat prompt the choice's own tokens, as the model would write them; after plain text the tokens that the
    whole has more than the prompt, which a space belongs to that stands between."""
    if row.prompt is None:
        prompt = render_prompt(tokenizer, row.messages or [])
        return continuation(prompt, tokenizer(choice, add_special_tokens=False)["input_ids"])
    context = tokenizer(row.prompt.rstrip())["input_ids"]
    whole = tokenizer(row.prompt + choice)["input_ids"]
    if len(whole) > len(context) and whole[: len(context)] == context:
        return continuation(context, whole[len(context) :])
    # a tokenizer that joins both where they meet, or ends every text by a token of its own
    return continuation(tokenizer(row.prompt)["input_ids"], tokenizer(choice, add_special_tokens=False)["input_ids"])
