"""Datasets by name: `datasets`' own Parquet builder stands in for one on the Hub, which tests cannot reach."""

from __future__ import annotations

import pickle

import datasets
import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import Ledger
from hf_recipes.data.reading.blocks import Limits
from hf_recipes.data.reading.hub import hub_blocks, hub_identity, load_hub_dataset
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import read_rows, source_blocks, source_identity

ROWS = [
    {"messages": [{"role": "user", "content": str(number)}, {"role": "assistant", "content": "a", "weight": 1}]}
    for number in range(25)
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def spec(tmp_path):
    file = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(file)
    return SourceSpec("parquet", data_files=(str(file),))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("limits", [Limits(), Limits(rows=10), Limits(bytes=300)])
def test_dataset_is_read_in_blocks_that_can_be_sent(spec, streaming, limits):
    blocks = [pickle.loads(pickle.dumps(block)) for block in source_blocks(spec, streaming, limits)]
    rows = [row for block in blocks for row in block.rows()]
    assert [value for _, value in rows] == ROWS
    assert [str(place) for place, _ in rows] == [f"parquet:{number}" for number in range(25)]
    if limits.rows == 10:
        assert [len(list(block.rows())) for block in blocks] == [10, 10, 5]


@pytest.mark.parametrize("streaming", [False, True])
def test_fields_of_mixed_types_are_decoded(tmp_path, streaming):
    rows = [{"content": "text"}, {"content": [{"type": "text", "text": "part"}]}, {"content": None}]
    data = datasets.Dataset.from_list(rows, on_mixed_types="use_json")
    data.to_parquet(tmp_path / "x.parquet")
    spec = SourceSpec("parquet", data_files=(str(tmp_path / "x.parquet"),))
    assert [row for _, row in read_rows(spec, Ledger("x"), streaming)] == rows
    assert [row for _, row in read_rows(SourceSpec(str(tmp_path / "x.parquet")), Ledger("x"))] == rows


def test_slices_shuffles_and_selections_are_followed(spec, monkeypatch):
    data = load_hub_dataset(spec).shuffle(seed=1).select(range(3, 20))
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load_dataset", lambda *_, **__: data)
        blocks = list(hub_blocks(spec, streaming=False, limits=Limits(rows=4)))
    assert [value["messages"][0]["content"] for block in blocks for _, value in block.rows()] == [
        row["messages"][0]["content"] for row in data
    ]
    part = SourceSpec(spec.path, split="train[5:8]", data_files=spec.data_files)
    assert [value for block in source_blocks(part) for _, value in block.rows()] == ROWS[5:8]


def test_identity_follows_the_content_and_the_split(spec, tmp_path):
    first = source_identity(spec)
    assert first == source_identity(spec) == [hub_identity(spec)] and "/parquet/" in first[0]
    assert source_identity(SourceSpec(spec.path, split="train[:3]", data_files=spec.data_files)) != first
    datasets.Dataset.from_list(ROWS[:20]).to_parquet(tmp_path / "rows.parquet")
    assert source_identity(spec) != first


@pytest.mark.parametrize("streaming", [False, True])
def test_absent_split_names_those_there_are(spec, streaming):
    wrong = SourceSpec(spec.path, split="test", data_files=spec.data_files)
    with pytest.raises(UserError, match=r"Dataset 'parquet' has no split 'test': set split to one of train\."):
        load_hub_dataset(wrong, streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_configurations_are_named(tmp_path, streaming, monkeypatch):
    """A directory laid out like a repository of two configurations, which is how `datasets` reads one of the Hub."""
    for name in ("one", "two"):
        datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "repo" / name / "x.parquet")
    card = "---\nconfigs:\n- config_name: one\n  data_files: one/*\n- config_name: two\n  data_files: two/*\n---\n"
    (tmp_path / "repo" / "README.md").write_text(card)
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda path, *rest, **more: load(str(tmp_path / "repo"), *rest, **more)
    )
    with pytest.raises(UserError, match=r"'o/repo' has several configurations: set name to one of one, two\."):
        load_hub_dataset(SourceSpec("o/repo"), streaming)
    with pytest.raises(UserError, match=r"'o/repo' has no name 'tow': set name to one of one, two\."):
        load_hub_dataset(SourceSpec("o/repo", name="tow"), streaming)
    blocks = hub_blocks(SourceSpec("o/repo", name="two"), streaming, Limits())
    assert [value for block in blocks for _, value in block.rows()] == ROWS


@pytest.mark.parametrize(
    ("error", "message"),
    [
        # The texts are those of datasets.load.dataset_module_factory.
        (
            datasets.exceptions.DatasetNotFoundError("Dataset 'o/x' is a gated dataset on the Hub. Visit …"),
            "is gated: ask for access on its page, then log in",
        ),
        (
            datasets.exceptions.DatasetNotFoundError("Dataset 'o/x' doesn't exist on the Hub or cannot be accessed."),
            r"cannot be read \(Dataset 'o/x' doesn't exist .* accessed\): check the name",
        ),
        (ConnectionError("Couldn't reach 'o/x' on the Hub (ConnectError)"), "cannot be reached .*: check the network"),
        (RuntimeError("Dataset scripts are no longer supported, but found x.py"), "scripts are no longer supported"),
        (OSError(), r"cannot be read \(OSError\)"),
    ],
)
def test_what_the_hub_answers_is_one_sentence(monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(UserError, match=message) as caught:
        list(source_blocks(SourceSpec("o/x")))
    assert "\n" not in str(caught.value)


def test_stream_that_breaks_off_names_the_row(spec, monkeypatch):
    def rows():
        yield from ROWS[:12]
        raise TimeoutError("read timed out\nafter 10 s")

    data = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: data)
    blocks = source_blocks(SourceSpec("o/x"), streaming=True, limits=Limits(rows=10))
    assert len(list(next(blocks).rows())) == 10
    with pytest.raises(UserError, match=r"cannot be read on after row 12 \(read timed out\)"):
        next(blocks)


def test_empty_dataset_is_an_error(spec, monkeypatch):
    empty = SourceSpec(spec.path, split="train[:0]", data_files=spec.data_files)
    with pytest.raises(UserError, match=r"Dataset 'parquet', split 'train\[:0\]', holds no rows"):
        list(source_blocks(empty))
    for streaming in (False, True):
        stands_in = load_hub_dataset(spec, streaming).take(0)
        with monkeypatch.context() as patch, pytest.raises(UserError, match="'o/x', split 'train', holds no rows"):
            patch.setattr(datasets, "load_dataset", lambda *_, found=stands_in, **__: found)
            list(source_blocks(SourceSpec("o/x"), streaming))
