from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.data.check import check_sources
from hf_recipes.data.ledger import Ledger
from hf_recipes.data.reading.blocks import Limits
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import (
    as_specs,
    block_rows,
    find_files,
    read_rows,
    rename,
    source_blocks,
    source_identity,
    unique_labels,
)


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
        ({"path": "json"}, "'json' is a kind of file, not data"),
        ({"path": "x", "eval_share": 1.5}, "eval_share must be a number from 0 to 1"),
        ({"path": "x", "eval_share": True}, "eval_share must be a number from 0 to 1"),
        ({"path": "x", "group_by": ["a"]}, "group_by must be a name, not"),
        ({"path": "x", "stratify": "a"}, r"unknown key 'stratify' \(did you mean 'stratify_by'\?\)"),
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


def test_directory_of_plain_text_alone_is_read_and_one_of_neither_says_what_to_do(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match=r"holds no \.json, .* file; .* data_files: '\*\*/\*\.py'"):
        find_files(SourceSpec(str(tmp_path)))
    (tmp_path / "b.txt").write_text("one\n\ntwo\n")
    assert [row for _, row in read_rows(SourceSpec(str(tmp_path)), Ledger("x"))] == [{"text": "one"}, {"text": "two"}]


def test_code_is_kept_whole_where_it_is_named_and_the_format_is_text(tmp_path):
    (tmp_path / "src" / "inner").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text("x = 1\n\ny = 2\n")
    (tmp_path / "src" / "inner" / "b.json").write_text('{"not": "rows"}')
    spec = SourceSpec(str(tmp_path / "src"), data_files=("**/*.py", "**/*.json"), format="text")
    assert [row["text"] for _, row in read_rows(spec, Ledger("x"))] == ["x = 1\n\ny = 2\n", '{"not": "rows"}']
    check_sources([spec])
    one = SourceSpec(str(tmp_path / "src" / "a.py"), format="text")
    assert [str(place) for place, _ in read_rows(one, Ledger("x"))] == [f"{tmp_path}/src/a.py:1"]
    with pytest.raises(UserError, match=r"unknown ending '\.py': .* with format: text, files of other endings"):
        find_files(SourceSpec(str(tmp_path / "src" / "a.py")))


@pytest.fixture
def saved(tmp_path):
    import datasets

    splits = {name: datasets.Dataset.from_list([{"text": f"{name}{n}"} for n in range(7)]) for name in ("train", "dev")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved", num_shards={"train": 3, "dev": 1})
    return tmp_path / "saved"


def test_saved_datasets_are_read_by_split(saved, tmp_path):
    def read(path=saved, **keys):
        spec = SourceSpec.from_dict({"path": str(path), **keys})
        return [row["text"] for _, row in read_rows(spec, Ledger("x"))]

    assert read() == read(split="train") == [f"train{n}" for n in range(7)]
    assert read(split="dev") == read(path=saved / "dev") == [f"dev{n}" for n in range(7)]
    for keys, message in (
        ({"split": "test"}, r"has no split 'test': set split to one of train, dev\."),
        ({"split": "train[:2]"}, r"has no split 'train\[:2\]'"),
        ({"name": "x"}, "has no name 'x': remove that key"),
        ({"path": saved / "dev", "split": "test"}, "is one saved split and has no split 'test'"),
    ):
        with pytest.raises(UserError, match=message):
            read(**keys)
    (saved / "train" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(UserError, match=r"data-00001-of-00003\.arrow', which .* names, does not exist"):
        read()


def test_shuffled_dataset_is_saved_and_read_in_its_new_order(tmp_path):
    import datasets

    data = datasets.Dataset.from_dict({"text": list("abcdefgh")}).shuffle(seed=3)
    data.save_to_disk(tmp_path / "saved")
    rows = [row["text"] for _, row in read_rows(SourceSpec(str(tmp_path / "saved")), Ledger("x"))]
    assert rows == data["text"][:] != list("abcdefgh")


def test_blocks_flattened_are_the_rows(shared_data):
    spec = SourceSpec(str(shared_data / "*.json"), columns={"prompt": "instruction"})
    whole, parts = Ledger("x"), Ledger("x")
    rows = list(read_rows(spec, whole))
    sent = (pickle.loads(pickle.dumps(block)) for block in source_blocks(spec, limits=Limits(rows=100)))
    assert [row for block in sent for row in block_rows(block, spec, parts)] == rows
    assert whole.read == parts.read == len(rows) > 2000


def test_identity_follows_bytes_names_and_number_of_files(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n")
    first = source_identity(SourceSpec(str(tmp_path)))
    # sha256 of "{}" and a line feed, as sha256sum gives it.
    assert first == ["sha256:ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356 a.jsonl"]
    file.write_text("[]\n")
    assert source_identity(SourceSpec(str(tmp_path))) != first
    file.write_text("{}\n")
    (tmp_path / "b.jsonl").write_text("{}\n")
    assert source_identity(SourceSpec(str(tmp_path)))[:1] == first
    assert len(source_identity(SourceSpec(str(tmp_path)))) == 2


def test_labels_leave_the_ending_out():
    paths = ["a/x.JSONL.gz", "x.y.json", "owner/x.y", "data/*.parquet", "./src/a.py"]
    assert [SourceSpec(path).label for path in paths] == ["x", "x.y", "owner/x.y", "*", "a"]


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


def test_renamed_column_can_still_be_grouped_by(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    columns = {"instruction": "question", "output": "answer"}
    spec = SourceSpec(str(tmp_path / "x.jsonl"), columns=columns, group_by="question")
    ((_, row),) = read_rows(spec, Ledger("x"))
    assert row == {"question": "q", "instruction": "q", "output": "a"}


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
        "import sys, hf_recipes.data.check, hf_recipes.data.reading.hub;"
        "import hf_recipes.data.mixing.mixture, hf_recipes.data.choosing.split;"
        "print([name for name in ('torch', 'transformers', 'datasets', 'pyarrow') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_keys_of_a_source_are_known_to_the_recipe_as_such():
    from hf_recipes.recipe.key_table import load_key_table
    from hf_recipes.recipe.validate import OF_A_SOURCE

    fields = {item.name for item in dataclasses.fields(SourceSpec)}
    assert set(OF_A_SOURCE) == fields - set(load_key_table()) - {"name"}
