from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.clean.personal import Finding, find_personal_data, mask, personal_data


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Write to jane.doe+x@mail.university.edu.", "email"),
        ("Account GB82 WEST 1234 5698 7654 32, please", "iban"),  # the sample of ISO 13616's registry
        ("DE89370400440532013000", "iban"),
        ("card 4111 1111 1111 1111", "credit_card"),  # a test number of the card networks
        ("3782-822463-10005", "credit_card"),
        ("SSN 536-22-8714", "us_ssn"),
        ("from 151.101.1.69:", "ip_address"),
        ("call +44 20 7946 0958", "phone"),
        ("call (212) 736-5000 or", "phone"),
        ("780-800-7092", "phone"),
        ("手机 13812765432。", "phone"),
    ],
)
def test_each_kind_is_found_once(text, kind):
    assert personal_data(text) == {kind: 1}


@pytest.mark.parametrize(
    "text",
    [
        "someone@example.com, boss@company.com, yourname@yourdomain.com, a@b, @handle, x @ y.com",
        "GB82 WEST 1234 5698 7654 33",  # check digits wrong
        "4111 1111 1111 1112",  # Luhn's sum wrong
        "0000 0000 0000 0000",
        "123-45-6789",
        "192.168.0.1 10.0.0.1 127.0.0.1 999.1.1.1 version 2.10.33.4 v1.2.3.4",
        "(555) 123-4567, 212-555-0142",
        "13000000000 people, 3.14159265358979, 1234567890, 2024-01-15, 10:30:00, 1,234,567,890",
        "ISBN 978-3-16-148410-0, 12345678901234",
        "def f(x): return x @ y",
    ],
)
def test_other_numbers_and_samples_are_not(text):
    assert personal_data(text) == {}


def test_no_digit_counts_twice():
    assert personal_data("DE89 3704 0044 0532 0130 00 and 4111 1111 1111 1111") == {"iban": 1, "credit_card": 1}


def test_findings_are_masked():
    assert find_personal_data("jane@mail.org") == [Finding("email", "j***********g")]
    assert mask("4111 1111 1111 1111") == "4************1"


@given(st.text(st.characters(codec="ascii"), min_size=3, max_size=40))
def test_a_mask_shows_two_characters_at_most(text):
    masked = mask(text)
    assert masked[0] == text[0] and masked[-1] == text[-1] and set(masked[1:-1]) == {"*"} and len(masked) <= 14
