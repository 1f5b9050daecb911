"""The 25 verifiable instructions of IFEval, each a function of the answer and the instruction's own arguments.

Source: Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", arXiv 2311.07911, table 1. The
names of instructions and arguments are those of its input file. Where the original counts sentences and words by
NLTK, which needs data to be downloaded, these go by marks and letters; keywords are plain text here, not patterns.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hf_recipes.evaluation.judges.language import detector_is_here, is_language
from hf_recipes.evaluation.judges.sentences import sentences
from hf_recipes.evaluation.scoring import parse_json

_CAPITALISABLE = re.compile(r"\w+(?:['’.-]\w+)*")
_FENCE = re.compile(r"\A```(?:json)?|```\Z", re.IGNORECASE)
_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FIRST_WORD = re.compile(r"[\"']*([^.,?!'\"]*)")

RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "at least": lambda count, bound: count >= bound,
    "less than": lambda count, bound: count < bound,
}


def _existence(answer: str, *, keywords: list[str]) -> bool:
    return all(keyword.lower() in answer.lower() for keyword in keywords)


def _frequency(answer: str, *, keyword: str, frequency: int, relation: str) -> bool:
    return RELATIONS[relation](answer.lower().count(keyword.lower()), frequency)


def _forbidden_words(answer: str, *, forbidden_words: list[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in forbidden_words)


def _letter_frequency(answer: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    return RELATIONS[let_relation](answer.lower().count(letter.lower()), let_frequency)


def _response_language(answer: str, *, language: str) -> bool:
    return is_language(answer, language)


def _number_sentences(answer: str, *, num_sentences: int, relation: str) -> bool:
    return RELATIONS[relation](len(sentences(answer)), num_sentences)


def _number_paragraphs(answer: str, *, num_paragraphs: int) -> bool:
    """Paragraphs are divided by ``***``; only the first and the last may be empty, and then do not count."""
    parts = [part.strip() for part in answer.split("***")]
    return all(parts[1:-1]) and sum(map(bool, parts)) == num_paragraphs


def _number_words(answer: str, *, num_words: int, relation: str) -> bool:
    return RELATIONS[relation](len(re.findall(r"\w+", answer)), num_words)


def _nth_paragraph_first_word(answer: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Paragraphs are divided by an empty line here."""
    parts = [part.strip() for part in answer.split("\n\n")]
    count = sum(map(bool, parts))
    if not 1 <= nth_paragraph <= count or not parts[nth_paragraph - 1]:
        return False
    word = _FIRST_WORD.match(parts[nth_paragraph - 1].split()[0])
    return count == num_paragraphs and word is not None and word[1].lower() == first_word.lower()


def _number_placeholders(answer: str, *, num_placeholders: int) -> bool:
    return sum(_closed(line, "[", "]") for line in answer.split("\n")) >= num_placeholders


def _postscript(answer: str, *, postscript_marker: str) -> bool:
    spaced = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(spaced.get(postscript_marker, re.escape(postscript_marker.lower())), answer.lower()) is not None


def _number_bullet_lists(answer: str, *, num_bullets: int) -> bool:
    lines = [line.strip() for line in answer.split("\n")]
    return sum(line[:1] == "-" or (line[:1] == "*" and line[1:2] not in ("", "*")) for line in lines) == num_bullets


def _constrained_response(answer: str) -> bool:
    return any(allowed in answer for allowed in _CONSTRAINED)


def _number_highlighted_sections(answer: str, *, num_highlights: int) -> bool:
    """Non-empty ``*…*`` or ``**…**`` on one line."""
    single = re.findall(r"\*[^\n*]*\*", answer)
    double = re.findall(r"\*\*[^\n*]*\*\*", answer)
    return sum(bool(part.strip("*").strip()) for part in single + double) >= num_highlights


def _multiple_sections(answer: str, *, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", answer)) >= num_sections


def _json_format(answer: str) -> bool:
    """One JSON value of any kind, in a code fence or not."""
    try:
        parse_json(_FENCE.sub("", answer.strip()))
    except ValueError:
        return False
    return True


def _title(answer: str) -> bool:
    spans = [line[line.find("<<") : line.rfind(">>")] for line in answer.split("\n") if "<<" in line and ">>" in line]
    return any(span.strip("<> ") for span in spans)


def _two_responses(answer: str) -> bool:
    """Two different answers divided by ``******``; empty parts only at the ends."""
    parts = [part.strip() for part in answer.split("******")]
    kept = [part for part in parts if part]
    return all(parts[1:-1]) and len(kept) == 2 and kept[0] != kept[1]


def _repeat_prompt(answer: str, *, prompt_to_repeat: str) -> bool:
    return answer.strip().lower().startswith(prompt_to_repeat.strip().lower())


def _end_checker(answer: str, *, end_phrase: str) -> bool:
    return answer.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _quotation(answer: str) -> bool:
    text = answer.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _capital_word_frequency(answer: str, *, capital_frequency: int, capital_relation: str) -> bool:
    return RELATIONS[capital_relation](sum(map(str.isupper, _CAPITALISABLE.findall(answer))), capital_frequency)


def _english_capital(answer: str) -> bool:
    return answer.isupper() and _is_english(answer)


def _english_lowercase(answer: str) -> bool:
    return answer.islower() and _is_english(answer)


def _no_comma(answer: str) -> bool:
    return "," not in answer


def _is_english(answer: str) -> bool:
    """Without a detector only the case is checked, which reading the rows tells."""
    return not detector_is_here() or is_language(answer, "en")


def _closed(line: str, opening: str, closing: str) -> int:
    """How many brackets are opened and closed after on one line, counted in one pass."""
    count, at = 0, line.find(opening)
    while at >= 0 and (end := line.find(closing, at)) >= 0:
        count, at = count + 1, line.find(opening, end)
    return count


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:existence": _existence,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden_words,
    "keywords:letter_frequency": _letter_frequency,
    "language:response_language": _response_language,
    "length_constraints:number_sentences": _number_sentences,
    "length_constraints:number_paragraphs": _number_paragraphs,
    "length_constraints:number_words": _number_words,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph_first_word,
    "detectable_content:number_placeholders": _number_placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _number_bullet_lists,
    "detectable_format:constrained_response": _constrained_response,
    "detectable_format:number_highlighted_sections": _number_highlighted_sections,
    "detectable_format:multiple_sections": _multiple_sections,
    "detectable_format:json_format": _json_format,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": _repeat_prompt,
    "startend:end_checker": _end_checker,
    "startend:quotation": _quotation,
    "change_case:capital_word_frequency": _capital_word_frequency,
    "change_case:english_capital": _english_capital,
    "change_case:english_lowercase": _english_lowercase,
    "punctuation:no_comma": _no_comma,
}
