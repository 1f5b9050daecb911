"""All of the data's way: read → format → tokenise and mask → split → mix, with an account of every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hf_recipes.core.log import logger
from hf_recipes.data.encode import EncodedSource, Settings, encode_source, tell_losses
from hf_recipes.data.fingerprint import fingerprint, tokenizer_fingerprint
from hf_recipes.data.masks import Encoder
from hf_recipes.data.mixture import Mixture, choose_mixture, shuffled, tell_short
from hf_recipes.data.report import Part, data_report
from hf_recipes.data.sources import SourceSpec, as_specs, unique_labels
from hf_recipes.data.split import Splitter

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class PreparedData:
    """What the trainer needs.

    `train` and `eval` have the columns ``input_ids``, ``labels`` (-100 where nothing is learned), ``source`` (the
    source's label) and ``row_id`` (``file:row``). `eval` is None when nothing was held out. `report` is written as
    ``data.json``.
    """

    train: Dataset
    eval: Dataset | None
    report: dict[str, Any]

    def eval_by_role(self) -> dict[str, Dataset]:
        """The eval set in its parts ``domain`` and ``general``, unmixed; empty parts are left out."""
        if self.eval is None:
            return {}
        roles = {source["source"]: source["role"] for source in self.report["sources"]}
        of_row = [roles[label] for label in self.eval["source"]]
        return {
            name: self.eval.select([index for index, role in enumerate(of_row) if role == name])
            for name in ("domain", "general")
            if name in of_row
        }


def prepare_data(
    datasets: Sequence[SourceSpec | Mapping[str, Any]],
    tokenizer: Any,
    *,
    max_length: int | None,
    eval_share: float = 0.1,
    general_share: float = 0.15,
    share_unit: str = "rows",
    assistant_only_loss: bool = True,
    overlong: str = "drop",
    bad_rows: str = "drop",
    seed: int = 42,
) -> PreparedData:
    """Read, check, tokenise, split and mix the sources of a recipe. The same inputs give the same data on every rank.

    Args:
        datasets: a recipe's ``datasets:``, as mappings or specs; at least one of role ``domain``.
        tokenizer: the model's fast tokenizer, with a chat template unless all sources are plain text.
        max_length: tokens a sample may have; None for no limit.
        eval_share: part of each source held out before mixing; 0 holds nothing out.
        general_share: general part of the training set, by `share_unit`; without a general source it is ignored.
        share_unit: ``rows``, ``tokens`` or ``supervised_tokens``.
        assistant_only_loss: learn only what the assistant says (and plain text); otherwise all tokens.
        overlong: ``drop`` samples whose answer does not fit, or ``shorten_prompt`` so that it does.
        bad_rows: ``drop`` faulty rows and count them, or ``fail`` at the first.
        seed: decides split, general rows and order.

    Raises:
        UserError: a setting or source is wrong, or nothing of a source is left; says what to do.
    """
    settings = Settings(
        max_length, eval_share, general_share, share_unit, assistant_only_loss, overlong, bad_rows, seed
    )
    specs = as_specs(datasets)
    encoder = Encoder(tokenizer, assistant_only_loss)
    sources = [
        encode_source(spec, label, encoder, settings) for spec, label in zip(specs, unique_labels(specs), strict=True)
    ]
    splitter = Splitter(eval_share, seed)
    for source in sources:
        source.train, source.eval = splitter.split(source.keys)
        tell_losses(source)
    mixture = _mix(sources, settings)
    train = [(source, index) for source in sources for index in source.train]
    train = [train[position] for position in shuffled(len(train), seed)]
    held_out = [(source, index) for source in sources for index in source.eval]
    if eval_share > 0 and not held_out:
        logger.warning("eval_share %g holds nothing out: the sources are too small to split.", eval_share)
    report = data_report(
        [_part(source) for source in sources],
        unit=share_unit,
        asked=general_share,
        reached=mixture.share if mixture else None,
        end_of_turn=_end_of_turn(encoder, sources),
        settings=asdict(settings),
        data_fingerprint=_fingerprint(sources, settings, tokenizer),
    )
    return PreparedData(_dataset(train), _dataset(held_out) if held_out else None, report)


def _mix(sources: Sequence[EncodedSource], settings: Settings) -> Mixture | None:
    """Leave in every general source only the training rows that its share calls for."""
    general = [source for source in sources if source.spec.role == "general"]
    if not general:
        if settings.general_share > 0:
            logger.info(
                "No source has role: general, so general_share %g is ignored: general data mixed in keeps the model "
                "from forgetting.",
                settings.general_share,
            )
        return None
    if settings.general_share == 0:
        logger.warning("general_share is 0, so no row of the general sources is trained on.")
    domain = [source for source in sources if source.spec.role == "domain"]
    mixture = choose_mixture(
        [size for source in domain for size in _sizes(source, settings.share_unit)],
        [_sizes(source, settings.share_unit) for source in general],
        settings.general_share,
        settings.seed,
        [source.spec.weight for source in general],
    )
    tell_short(mixture, settings.share_unit)
    for source, chosen in zip(general, mixture.chosen, strict=True):
        source.train = [source.train[position] for position in chosen]
    return mixture


def _sizes(source: EncodedSource, unit: str) -> list[int]:
    samples = [source.samples[index] for index in source.train]
    if unit == "rows":
        return [1] * len(samples)
    return [len(sample.input_ids) if unit == "tokens" else sample.supervised_tokens for sample in samples]


def _part(source: EncodedSource) -> Part:
    return Part(
        label=source.label,
        path=source.spec.path,
        role=source.spec.role,
        format=source.format,
        files=source.files,
        ledger=source.ledger.as_dict(),
        train=[_size(source, index) for index in source.train],
        eval=[_size(source, index) for index in source.eval],
    )


def _size(source: EncodedSource, index: int) -> tuple[int, int]:
    return len(source.samples[index].input_ids), source.samples[index].supervised_tokens


def _end_of_turn(encoder: Encoder, sources: Sequence[EncodedSource]) -> dict[str, Any] | None:
    if all(source.format == "text" for source in sources):
        return None
    end = encoder.template.end_of_turn
    is_eos = end.token_id == encoder.tokenizer.eos_token_id
    if not is_eos:
        logger.info(
            "Assistant turns end with %r (token %d), not the eos_token %r: generation must stop at it.",
            end.text,
            end.token_id,
            encoder.tokenizer.eos_token,
        )
    return {"text": end.text, "token_id": end.token_id, "is_eos": is_eos}


def _fingerprint(sources: Sequence[EncodedSource], settings: Settings, tokenizer: Any) -> str:
    described = [
        {
            "files": [file["sha256"] for file in source.files],
            "contents": source.contents,
            "format": source.format,
            "role": source.spec.role,
            "weight": source.spec.weight,
        }
        for source in sources
    ]
    return fingerprint(
        {"sources": described, "settings": asdict(settings), "tokenizer": tokenizer_fingerprint(tokenizer)}
    )


def _dataset(rows: Sequence[tuple[EncodedSource, int]]) -> Dataset:
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "input_ids": [source.samples[index].input_ids for source, index in rows],
            "labels": [source.samples[index].labels for source, index in rows],
            "source": [source.label for source, _ in rows],
            "row_id": [str(source.places[index]) for source, index in rows],
        }
    )
