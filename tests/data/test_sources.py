from __future__ import annotations

import subprocess
import sys

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.data.check import check_sources
from hf_recipes.data.ledger import Ledger
from hf_recipes.data.sources import SourceSpec, as_specs, find_files, read_rows, rename, unique_labels


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"path": "x", "rol": "general"}, r"datasets\[0\]: unknown key 'rol' \(did you mean 'role'\?\)"),
        ({"path": "x", "role": "genral"}, r"role 'genral' \(did you mean 'general'\?\) must be one of"),
        ({"path": "x", "format": "alpacca"}, r"format 'alpacca' \(did you mean 'alpaca'\?\)"),
        ({"path": "x", "columns": {"instructions": "q"}}, r"unknown field 'instructions' \(did you mean 'instruction'"),
        ({"path": "x", "role": "general", "weight": 0}, "weight must be a number above 0"),
        ({"path": "x", "weight": 2.0}, "weight shares out general rows only"),
        ({"path": "x", "data_files": 3}, "data_files must be"),
        ({"name": "x"}, "path must name"),
        ("x", "must be a mapping"),
    ],
)
def test_wrong_settings_are_named(values, message):
    with pytest.raises(UserError, match=message):
        SourceSpec.from_dict(values)


def test_there_must_be_a_domain_source():
    with pytest.raises(UserError, match="no source of role domain"):
        as_specs([{"path": "x", "role": "general"}])


def test_files_by_directory_pattern_and_list_are_the_same_and_in_order(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "notes.txt"):
        (tmp_path / name).write_text('{"text": "x"}\n')
    wanted = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    assert find_files(SourceSpec(str(tmp_path))) == wanted
    assert find_files(SourceSpec(str(tmp_path / "*.jsonl"))) == wanted
    assert find_files(SourceSpec(str(tmp_path), data_files=("a.jsonl", str(wanted[1])))) == wanted
    assert find_files(SourceSpec(str(tmp_path), data_files=("*.jsonl",))) == wanted


@pytest.mark.parametrize("path", ["./nowhere.jsonl", "nowhere.json", "/a/b/c", "data/*.jsonl", "~/x"])
def test_absent_local_path_is_told_apart_from_a_hub_name(path):
    with pytest.raises(UserError, match="does not exist"):
        find_files(SourceSpec(path))


def test_hub_name_without_network_is_one_sentence():
    assert find_files(SourceSpec("nobody/nothing-here")) is None
    with pytest.raises(UserError, match=r"'nobody/nothing-here' is no local file, .*give a local path") as caught:
        list(read_rows(SourceSpec("nobody/nothing-here"), Ledger("x")))
    assert "\n" not in str(caught.value)


def test_split_of_a_local_file_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(UserError, match="has no split 'test'"):
        find_files(SourceSpec(str(tmp_path / "a.jsonl"), split="test"))


def test_unknown_ending_names_the_known_ones(tmp_path):
    (tmp_path / "a.xlsx").write_text("x")
    with pytest.raises(UserError, match=r"unknown ending '\.xlsx': known are \.json"):
        find_files(SourceSpec(str(tmp_path / "a.xlsx")))


def test_columns_can_be_renamed_and_swapped():
    row = {"question": "q", "answer": "a", "id": 1}
    assert rename(row, {"instruction": "question", "output": "answer"}) == {"instruction": "q", "output": "a", "id": 1}
    assert rename({"input": "i", "output": "o"}, {"input": "output", "output": "input"}) == {
        "input": "o",
        "output": "i",
    }


def test_sources_of_one_name_get_labels_of_their_own():
    specs = [SourceSpec("a/x.json"), SourceSpec("b/x.json"), SourceSpec("owner/x")]
    assert unique_labels(specs) == ["x", "x#2", "owner/x"]


def test_check_sources_finds_what_is_wrong_before_anything_starts(tmp_path):
    good, empty, odd = tmp_path / "good.jsonl", tmp_path / "empty.jsonl", tmp_path / "odd.jsonl"
    good.write_text('{"instruction": "a", "output": "b"}\n')
    empty.write_text("")
    odd.write_text('{"question": "a", "answer": "b"}\n')
    check_sources([{"path": str(good)}])
    check_sources([{"path": str(odd), "columns": {"prompt": "question", "completion": "answer"}}])
    for path, extra, message in (
        (empty, {}, "holds no rows"),
        (odd, {}, "keys question, answer"),
        (odd, {"columns": {"prompt": "questions", "completion": "answer"}}, "no column 'questions' to use as prompt"),
    ):
        with pytest.raises(UserError, match=message):
            check_sources([{"path": str(path), **extra}])
    with pytest.raises(UserError, match="bad_rows must be one of"):
        check_sources([{"path": str(good)}], bad_rows="ignore")


def test_checking_data_imports_no_heavy_library():
    code = (
        "import sys, hf_recipes.data.check, hf_recipes.data.report, hf_recipes.data.mixture, hf_recipes.data.split;"
        "print([name for name in ('torch', 'transformers', 'datasets', 'pyarrow') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
