"""Texts that go into job files as they are: what would end a line, or would not be what it says, is refused."""

from __future__ import annotations

import re
import unicodedata

from hf_recipes.core.errors import UserError

_NOT_IN_A_LINE = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of a pair, separators of lines and paragraphs
_UNRESOLVED = re.compile(r"\A~[^/]*|[^/]*\$[\w{(][^/]*")

_WORD = r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"
_PAIR = rf"([a-z0-9][a-z0-9.-]*/)?{_WORD}=({_WORD})?"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
# Flag → its form and the form in words. RFC 1123 as Kubernetes reads it; quantities as in its resource model; buckets
# as S3 and GCS name them.
_FORMS: dict[str, tuple[re.Pattern[str], str]] = {
    "namespace": (re.compile(_LABEL), "small letters, digits and hyphens, 63 at most"),
    "pvc": (re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*"), "small letters, digits, hyphens and dots"),
    "image": (re.compile(r"[\w.\-/:@]+", re.ASCII), "as registry/name:tag, without spaces"),
    "memory": (re.compile(r"(?=.*[1-9])\d+(\.\d+)?(k|[KMGTPE]i?|[eE]\d+)?(?<!K)", re.ASCII), "as 64Gi"),
    "node-selector": (re.compile(rf"{_PAIR}(,{_PAIR})*", re.ASCII), "KEY=VALUE, a comma between several"),
    "bucket": (
        re.compile(r"[a-z][a-z0-9]*://[^\s/]\S*|[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"),
        "s3://NAME, gs://NAME, or a name of 3 to 63 small letters, digits, hyphens and dots",
    ),
}


def check_line(what: str, text: str) -> None:
    """Raise `UserError` where a text would not stay on its line of a job file.

    Args:
        what: its flag or key, for the sentence.
        text: as the user gave it.
    """
    if any(unicodedata.category(character) in _NOT_IN_A_LINE for character in text):
        raise UserError(
            f"{what}: {ascii(text)[:80]} holds a line break or another control character, which would break the job "
            "file: leave it out."
        )


def check_form(flag: str, text: str) -> None:
    """Raise `UserError` where a flag's text is none that its scheduler takes; flags of free text are left alone."""
    if not text.strip():
        raise UserError(f"--{flag}: is empty: give a value, or leave it out.")
    if flag in _FORMS and not _FORMS[flag][0].fullmatch(text):
        raise UserError(f"--{flag}: '{text[:80]}' is none that its scheduler takes: write {_FORMS[flag][1]}.")


def check_run_directory(output_dir: str) -> None:
    """Raise `UserError` where a run directory is not the path that it says: no shell puts in ``~`` or ``$NAME``."""
    check_line("output_dir", output_dir)
    if found := _UNRESOLVED.search(output_dir):
        raise UserError(
            f"output_dir: '{output_dir}' would be taken as it stands, with a directory called "
            f"'{found[0]}': write the path out, as the nodes see it."
        )
