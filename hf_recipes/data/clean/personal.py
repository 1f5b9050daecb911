"""Data that points to a person, found by form and check digits. Needs no library; finds forms, not names."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# What a text must hold for a kind to be looked for at all.
_ANY_NUMBER = re.compile(r"[0-9](?:[0-9] ?[0-9A-Z]{4}|(?:[ .()-]{0,3}[0-9]){7}|\.[0-9]{1,3}\.[0-9])")  # of one of these
_IBAN_START = re.compile(r"[0-9]{2} ?[0-9A-Z]{4}")
_EIGHT_DIGITS = re.compile(r"[0-9](?:[ .()-]{0,3}[0-9]){7}")
_DOTTED = re.compile(r"[0-9]\.[0-9]{1,3}\.[0-9]")


# Reserved by RFC 2606, or what people write who mean nobody.
_SAMPLE_DOMAIN = re.compile(
    r"(?:^|\.)(?:example(?:\.\w+)?|test|invalid|localhost)$"
    r"|^(?:example-?|(?:your|my)?-?(?:domain|company|email))[\w-]*\.\w+$"
)


@dataclass(frozen=True)
class Finding:
    """One find: its kind (``email``, ``phone``, ``iban``, ``credit_card``, ``ip_address``, ``us_ssn``), masked."""

    kind: str
    masked: str


def personal_data(text: str) -> dict[str, int]:
    """How many finds of each kind a text holds; kinds without any are left out."""
    return dict(Counter(finding.kind for finding in find_personal_data(text)))


def find_personal_data(text: str) -> list[Finding]:
    """All finds in a text, each character counted for one of them at most.

    Left out: addresses of sample domains (``example.com``, ``yourdomain.com``), private and reserved IP addresses,
    numbers of the fictional 555 exchange, and numbers whose check digits are wrong (cards by Luhn, IBANs modulo 97).
    """
    return [Finding(kind, mask(found)) for kind, found in _finds(text)]


def mask(found: str) -> str:
    """The first and the last character with stars between, as many as keep the length but for a long one's."""
    return f"{found[0]}{'*' * min(len(found) - 2, 12)}{found[-1]}"


def _finds(text: str) -> Iterator[tuple[str, str]]:
    has_number = _ANY_NUMBER.search(text) is not None
    for kind, (sign, pattern, accept) in _KINDS.items():
        if kind != "email" and not has_number:
            return
        if not (sign in text if isinstance(sign, str) else sign.search(text)):
            continue
        found: list[tuple[int, int]] = []
        for match in pattern.finditer(text):
            if accept(match):
                found.append(match.span())
                yield kind, match[0]
        for start, end in found:  # no digit of it may count again as something else
            text = f"{text[:start]}{' ' * (end - start)}{text[end:]}"


def _is_email(match: re.Match[str]) -> bool:
    domain = match[0].rpartition("@")[2].lower()
    return not (_SAMPLE_DOMAIN.search(domain) or match[0].lower().startswith("your"))


def _is_iban(match: re.Match[str]) -> bool:
    """ISO 13616: country and check digits moved to the end, letters as 10 to 35, the number is 1 modulo 97."""
    iban = match[0].replace(" ", "")
    if not 15 <= len(iban) <= 34:
        return False
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1


def _is_card(match: re.Match[str]) -> bool:
    """ISO/IEC 7812: 13 to 19 digits of a known issuer, Luhn's sum divisible by 10."""
    digits = [int(character) for character in match[0] if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_ssn(match: re.Match[str]) -> bool:
    return match[0] not in ("123-45-6789", "078-05-1120", "987-65-4321")  # the well-known samples


def _is_public_ip(match: re.Match[str]) -> bool:
    try:
        return ipaddress.IPv4Address(match[0]).is_global and match[0] not in ("8.8.8.8", "8.8.4.4", "1.1.1.1")
    except ValueError:
        return False


def _is_phone(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match[0])
    if not 8 <= len(digits) <= 15 or re.search(r"(\d)\1{5}|0123456|1234567", digits):
        return False
    return "555" not in (digits[-7:-4], digits[-10:-7])


_KINDS: dict[str, tuple[str | re.Pattern[str], re.Pattern[str], Callable[[re.Match[str]], bool]]] = {
    "email": ("@", re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.)+[A-Za-z]{2,24}(?![\w-])"), _is_email),
    "iban": (
        _IBAN_START,
        re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])"),
        _is_iban,
    ),
    "credit_card": (
        _EIGHT_DIGITS,
        re.compile(r"(?<![\w.,-])[3-6][0-9]{3}(?:[ -]?[0-9]){9,15}(?![\w-]|[.,][0-9])"),
        _is_card,
    ),
    "us_ssn": (
        _EIGHT_DIGITS,
        re.compile(r"(?<![\w-])(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![\w-])"),
        _is_ssn,
    ),
    "ip_address": (
        _DOTTED,
        re.compile(r"(?<![\w.-])(?<![vV]ersion )[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w-]|\.[0-9])"),
        _is_public_ip,
    ),
    "phone": (
        _EIGHT_DIGITS,
        re.compile(
            r"(?<![\w.+-])(?:"
            r"\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{1,4}(?:[ .-]?[0-9]{2,4}){2,4}"  # international
            r"|\([0-9]{3}\) ?[0-9]{3}[-. ][0-9]{4}|[0-9]{3}-[0-9]{3}-[0-9]{4}"  # North America
            r"|1[3-9][0-9]{9}"  # mobile, China
            r")(?![\w-]|[.,][0-9])"
        ),
        _is_phone,
    ),
}
