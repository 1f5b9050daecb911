"""How near an answer is to its references: exact match, token F1, and ROUGE, BLEU and chrF by the usual packages.

All scores are shares from 0 to 1; with several references the best counts.
"""

from __future__ import annotations

import functools
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hf_recipes.evaluation.judges.packages import needed

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
# Scripts written without spaces between words: Thai, Lao, Myanmar, Khmer, Han, kana.
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_UNSPACED = f"{_HAN}{_KANA}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_FIRST_UNSPACED = re.compile(f"[{_UNSPACED}]")


def squad_normalized(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single spaces: what SQuAD compares.

    Source: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1).
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1_tokens(text: str) -> list[str]:
    """SQuAD's tokens; characters of scripts written without spaces (Chinese, Japanese, Thai, …) are tokens of their
    own, without which a Chinese sentence would be one word, all right or all wrong."""
    return _FIRST_UNSPACED.sub(lambda found: f" {found[0]} ", squad_normalized(text)).split()


def token_f1(answer: str, reference: str) -> float:
    """The harmonic mean of precision and recall over tokens, counted with repetition (SQuAD 1.1, section 6.1).

    Two texts without any token agree (1.0); one without agrees with none that has some.
    """
    left, right = f1_tokens(answer), f1_tokens(reference)
    if not left or not right:
        return float(left == right)
    shared = sum((Counter(left) & Counter(right)).values())
    return 2 * shared / (len(left) + len(right))


def exact_match(answer: str, references: Sequence[str]) -> dict[str, float]:
    """Whether the answer is a reference, but for white space around it."""
    return {"exact_match": float(any(answer.strip() == reference.strip() for reference in references))}


def exact_match_squad(answer: str, references: Sequence[str]) -> dict[str, float]:
    """Whether the answer is a reference after SQuAD's normalisation of both."""
    wanted = {squad_normalized(reference) for reference in references}
    return {"exact_match_squad": float(squad_normalized(answer) in wanted)}


def f1(answer: str, references: Sequence[str]) -> dict[str, float]:
    """Token F1 against the nearest reference."""
    return {"f1": max(token_f1(answer, reference) for reference in references)}


def rouge(answer: str, references: Sequence[str]) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004) by `rouge_score`, without stemming.

    Each of the three takes its best reference. Its own tokeniser drops all letters but a to z; ours gives the same
    tokens on English text and keeps the words of others (see `WordTokenizer`).

    Raises:
        UserError: `rouge_score` is not installed.
    """
    scores = _rouge_scorer().score_multi(list(references), answer)
    return {name: float(score.fmeasure) for name, score in scores.items()}


def bleu(answer: str, references: Sequence[str]) -> dict[str, float]:
    """Sentence BLEU by `sacrebleu` (exponential smoothing, effective order), as a share.

    Means of sentence BLEU are not the BLEU of a corpus: print `corpus_scores`.

    Raises:
        UserError: `sacrebleu` is not installed.
    """
    metric = _bleu(bleu_tokenizer(references), effective_order=True)
    return {"bleu": _share(metric.sentence_score(_encodable(answer), [_encodable(text) for text in references]))}


def chrf(answer: str, references: Sequence[str]) -> dict[str, float]:
    """Sentence chrF2 (Popović 2015: character 6-grams, beta 2) by `sacrebleu`, as a share; needs no tokeniser.

    Raises:
        UserError: `sacrebleu` is not installed.
    """
    metric = needed("sacrebleu").CHRF()
    return {"chrf": _share(metric.sentence_score(_encodable(answer), [_encodable(text) for text in references]))}


TEXT_SCORES: dict[str, Callable[[str, Sequence[str]], dict[str, float]]] = {
    "exact_match": exact_match,
    "exact_match_squad": exact_match_squad,
    "f1": f1,
    "rouge": rouge,
    "bleu": bleu,
    "chrf": chrf,
}


def corpus_scores(name: str, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """The figure to print for all answers: the mean over answers, for BLEU and chrF the corpus's own.

    Args:
        name: a key of `TEXT_SCORES`.
        answers: at least one.
        references: those of each answer, at least one each.

    Raises:
        UserError: the package that computes the score is not installed.
    """
    if name in ("bleu", "chrf"):
        flat = [text for texts in references for text in texts]
        metric = _bleu(bleu_tokenizer(flat)) if name == "bleu" else needed("sacrebleu").CHRF()
        return {name: _share(metric.corpus_score(list(map(_encodable, answers)), _columns(references)))}
    rows = [TEXT_SCORES[name](answer, texts) for answer, texts in zip(answers, references, strict=True)]
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


def bleu_tokenizer(references: Sequence[str]) -> str:
    """How `sacrebleu` cuts these references into words: ``zh`` for Chinese, ``char`` for other scripts without spaces
    (its tokenisers for Japanese and Korean need packages of their own), ``13a``, its default, for all others.

    Goes by the script that most letters are of; an evaluation prints it, since BLEU of different tokenisers differ.
    """
    letters = "".join(references)
    han, unspaced = (len(re.findall(f"[{script}]", letters)) for script in (_HAN, _UNSPACED))
    if unspaced * 2 <= sum(map(str.isalpha, letters)):
        return "13a"
    return "zh" if han == unspaced else "char"


class WordTokenizer:
    """Words of any script for `rouge_score`: runs of letters and digits in lower case, and single characters of
    scripts written without spaces. On text of a to z and digits these are the package's own tokens."""

    def tokenize(self, text: str) -> list[str]:
        """The words of `text`."""
        return _WORD.findall(text.lower())


@functools.cache
def _rouge_scorer() -> Any:
    scorer = needed("rouge_score.rouge_scorer")
    return scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=WordTokenizer())


@functools.cache
def _bleu(tokenizer: str, effective_order: bool = False) -> Any:
    return needed("sacrebleu").BLEU(tokenize=tokenizer, effective_order=effective_order)


def _share(score: Any) -> float:
    return float(score.score) / 100


def _columns(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """As sacrebleu wants them: the first reference of each answer, then the second of each; None where it has none."""
    most = max(map(len, references))
    return [[_encodable(texts[i]) if i < len(texts) else None for texts in references] for i in range(most)]


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
