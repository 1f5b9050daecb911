from __future__ import annotations

import codecs
import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.reading.byte_streams import READ_BYTES, first_bad_byte, guess_encoding, open_utf8
from hf_recipes.data.reading.readers import read_file

GERMAN = "Der Bürger möchte über die Straße gehen, während die Bäume blühen und die Vögel schön singen. "
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSONL = '{"text": "häßlich 漢字 😀"}\n{"text": "b"}\n'
ROWS = [{"text": "häßlich 漢字 😀"}, {"text": "b"}]
MARKED = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@pytest.mark.parametrize("encoding", MARKED)
@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.txt", "x.jsonl.gz"])
def test_text_with_a_byte_order_mark_is_read_in_its_encoding(tmp_path, name, encoding):
    text = {
        "x.jsonl": JSONL,
        "x.jsonl.gz": JSONL,
        "x.json": "[" + JSONL.strip().replace("\n", ",") + "]",
        "x.csv": "text\nhäßlich 漢字 😀\nb\n",
        "x.txt": "häßlich 漢字 😀\nb\n",
    }[name]
    data = MARKED[encoding] + text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert [value for _, value in read_file(tmp_path / name)] == ROWS


@settings(max_examples=30, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.sampled_from(["utf-16-le", "utf-32-be"]),
)
def test_any_text_is_transcoded_whole(tmp_path_factory, text, encoding):
    file = tmp_path_factory.getbasetemp() / "any.txt"
    file.write_bytes(MARKED[encoding] + text.encode(encoding))
    with open_utf8(file) as stream:
        assert stream.read() == text.encode()


def test_text_longer_than_a_chunk_is_transcoded_whole(tmp_path):
    text = "häßlich 漢字 😀\n" * (READ_BYTES // 20)
    (tmp_path / "x.txt").write_bytes(MARKED["utf-16-le"] + text.encode("utf-16-le"))
    with open_utf8(tmp_path / "x.txt") as stream:
        assert stream.read() == text.encode()


@pytest.mark.parametrize(("encoding", "name"), [("utf-16-le", "UTF-16-LE"), ("utf-32-be", "UTF-32-BE")])
def test_utf16_without_a_mark_is_named(tmp_path, encoding, name):
    (tmp_path / "x.jsonl").write_bytes('{"text": "plain"}\n'.encode(encoding))
    with pytest.raises(UserError, match=f"may be {name} .*; convert it, e.g. iconv -f {name}"):
        list(read_file(tmp_path / "x.jsonl"))


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv", "txt"])
def test_other_encoding_names_file_byte_line_and_likely_encoding(tmp_path, ending):
    file = tmp_path / f"rows.{ending}"
    lines = {"json": '["{}",\n"{}"]', "jsonl": '"{}"\n"{}"\n', "csv": "text\n{}\n{}\n", "txt": "{}\n{}\n"}[ending]
    file.write_bytes(lines.format("plain", GERMAN * 5).encode("latin-1"))
    before = lines.format("plain", "Der B").rpartition("Der B")[0]
    offset, line = len(before) + len("Der B"), before.count("\n") + 1
    if ending in ("jsonl", "txt"):  # there a single bad line is but a bad row: make it the rule
        file.write_bytes(lines.format(GERMAN, GERMAN).encode("latin-1"))
        offset, line = len(lines.partition("{")[0]) + len("Der B"), 1
    with pytest.raises(UserError, match=rf"'.*rows\.{ending}' is not UTF-8 \(byte {offset}, line {line}\)") as caught:
        list(read_file(file))
    # The German letters are the same bytes in many of them; one is the most usual.
    assert "iconv -f CP1252 " in str(caught.value)


def test_broken_utf16_is_named_with_its_byte(tmp_path):
    # 2 bytes of mark, "ab" in 4, then half of a surrogate pair at the end: byte 6.
    (tmp_path / "x.jsonl").write_bytes(codecs.BOM_UTF16_LE + "ab".encode("utf-16-le") + b"\x00\xd8")
    with pytest.raises(UserError, match=r"is not UTF-16.* \(byte 6, line 1\)"):
        list(read_file(tmp_path / "x.jsonl"))


def test_first_bad_byte_is_found_behind_a_chunk_border(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n" + b"a" * (READ_BYTES - 2) + "é".encode() + b"b\n" * 5 + b"\xff")
    bad = first_bad_byte(file)
    assert (bad.offset, bad.line) == (READ_BYTES - 1 + 2 + 10, 7)
    assert bad.around.endswith(b"\xff")


def test_sound_text_has_no_bad_byte_and_no_guess(tmp_path):
    (tmp_path / "x").write_text("é" * 10, encoding="utf-8")
    assert first_bad_byte(tmp_path / "x") is None
    assert guess_encoding(b"plain") is None
