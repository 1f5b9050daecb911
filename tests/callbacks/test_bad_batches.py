"""The bad micro-batch on disk: replayed, and its rows named."""

from __future__ import annotations

import json

import pytest
import torch
from datasets import Dataset, IterableDataset
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments
from watch_helpers import NAN_GRADIENT_ONLY, NAN_LOSS, make_trainer, rows

from hf_recipes.callbacks import bad_batches, non_finite
from hf_recipes.callbacks.bad_batches import load_bad_batch, save_bad_batch
from hf_recipes.callbacks.non_finite import NonFiniteGuard
from hf_recipes.core.errors import UserError
from hf_recipes.core.events import read_events
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.data.batching.packing import pack, packed_dataset
from hf_recipes.data.prepare import prepare_data
from hf_recipes.models.methods.lora import LoraSettings, attach_lora
from hf_recipes.training.trainer import SupervisedTrainer

BAD_WORD = "~"  # a token of its own that only one row has


def alarms(path):
    return [event for event in read_events(path) if event["kind"] == "alarm"]


def poisoned_lora(tokenizer):
    """A tiny Llama with LoRA in which one token's embedding comes out as NaN."""
    model = attach_lora(make_tiny_llama(len(tokenizer)), LoraSettings(r=4, alpha=8, dropout=0.0))
    (bad_token,) = tokenizer(BAD_WORD)["input_ids"]

    def poison(module, inputs, output):
        return output.masked_fill((inputs[0] == bad_token)[..., None], float("nan"))

    model.get_input_embeddings().register_forward_hook(poison)
    return model


@pytest.fixture
def prepared(tmp_path, tokenizer):
    """24 rows of a chat file, of which row 13 has the bad word in its answer."""
    file = tmp_path / "chat.jsonl"
    chats = [
        {"prompt": f"question {index}", "completion": f"{'yes ' * (index % 5)}{BAD_WORD if index == 13 else 'no'}"}
        for index in range(24)
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in chats))
    return prepare_data([{"path": str(file)}], tokenizer, max_length=64, eval_share=0).train


def train(model, dataset, tokenizer, directory, **arguments):
    trainer = SupervisedTrainer(
        model=model,
        args=tiny_arguments(directory, per_device_train_batch_size=4, num_train_epochs=1, **arguments),
        data_collator=SupervisedCollator(pad_token_id=tokenizer.pad_token_id),
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[NonFiniteGuard("skip")],
    )
    trainer.train()
    (alarm,) = alarms(directory)
    (name,) = alarm["files"]
    assert name in alarm["message"]
    assert alarm["decision"] == "skip"
    return alarm, directory / name


@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_prepared_data_are_named_and_the_batch_gives_the_same_nan(packed, prepared, tokenizer, tmp_path):
    run, dataset = tmp_path / "run", prepared
    if packed:
        lengths = [len(ids) for ids in prepared["input_ids"]]
        dataset = packed_dataset(prepared, pack(lengths, 64, seed=0))
    model = poisoned_lora(tokenizer)
    alarm, file = train(model, dataset, tokenizer, run, gradient_accumulation_steps=1 if packed else 2)
    written = json.loads(file.read_text())
    assert (written["step"], written["rank"], written["what"]) == (alarm["step"], 0, "loss")
    assert written["micro_batch"] == alarm["micro_batch"]
    assert written["dataset_rows_unknown"] is None

    by_id = {row["row_id"]: row for row in prepared}
    for sample in written["rows"]:
        (named, *_) = sample["dataset_rows"]
        row = by_id[named["row_id"]]
        assert sample["input_ids"] == row["input_ids"]
        assert sample["labels"][1:] == row["labels"][1:]
        assert named["source"] == row["source"]
        assert prepared[named["index"]]["row_id"] == named["row_id"]
        assert sample["text"] == tokenizer.decode(row["input_ids"])
        assert sample["supervised_text"] in sample["text"]
    (bad,) = [sample for sample in written["rows"] if BAD_WORD in sample["text"]]
    (named,) = bad["dataset_rows"]
    assert named["row_id"].endswith("chat.jsonl:14")  # lines count from 1
    assert BAD_WORD in bad["supervised_text"] and "question" not in bad["supervised_text"]

    batch = load_bad_batch(file)
    assert torch.isnan(model(**batch).loss)
    if packed:
        assert len(written["rows"]) > len(batch["input_ids"])
    healthy = batch | {"input_ids": batch["input_ids"].clamp(max=3)}
    assert torch.isfinite(model(**healthy).loss)


@pytest.mark.parametrize(("marker", "micro_batch"), [(NAN_LOSS, 2), (NAN_GRADIENT_ONLY, 3)])
def test_only_the_bad_micro_batch_is_written_exactly_as_forward_got_it(marker, micro_batch, tmp_path):
    data = rows(12, {3 + micro_batch - 1: marker})
    trainer = make_trainer(tmp_path, [NonFiniteGuard()], data, gradient_accumulation_steps=3)
    trainer.train()
    (alarm,) = alarms(tmp_path)
    assert alarm["files"] == [f"bad_batches/step-2-rank0-micro{micro_batch}.json"]
    file = tmp_path / alarm["files"][0]
    assert sorted(each.name for each in file.parent.iterdir()) == [file.name, file.with_suffix(".safetensors").name]
    batch = load_bad_batch(file)
    expected = {name: value[None] for name, value in data[3 + micro_batch - 1].items()}
    torch.testing.assert_close(batch, expected, rtol=0, atol=0)
    assert load_bad_batch(file.with_suffix(".safetensors")).keys() == batch.keys()
    loss = trainer.model(**batch)["loss"]
    loss.backward()
    assert loss.isnan() == (marker == NAN_LOSS)
    assert trainer.model.head.weight.grad.isnan().all() == (marker == NAN_LOSS)
    assert trainer.model.embedding.weight.grad.isnan().any()
    written = json.loads(file.read_text())
    assert f'"input_ids": {batch["input_ids"][0].tolist()}' in file.read_text()  # on one line
    assert [row["dataset_rows"] for row in written["rows"]] == [
        [{"index": 3 + micro_batch - 1, "source": None, "row_id": None}]  # this data set has no ids
    ]
    assert written["rows"][0]["text"] is None  # and this trainer no tokenizer


def test_a_stream_is_written_with_its_rows_unknown(tmp_path):
    data = rows(4, {1: NAN_LOSS})
    stream = IterableDataset.from_generator(lambda: iter([{k: v.tolist() for k, v in row.items()} for row in data]))
    trainer = make_trainer(tmp_path, [NonFiniteGuard()], stream)
    trainer._get_train_sampler = lambda *_: None
    trainer.train()
    (alarm,) = alarms(tmp_path)
    written = json.loads((tmp_path / alarm["files"][0]).read_text())
    assert "cannot be searched" in written["dataset_rows_unknown"]
    assert written["rows"][0]["input_ids"] == data[1]["input_ids"].tolist()


def test_what_cannot_be_written_does_not_hide_the_alarm(tmp_path):
    (tmp_path / bad_batches.DIRECTORY).write_text("a file where the directory should be")
    guard = NonFiniteGuard()
    trainer = make_trainer(tmp_path, [guard], rows(4, {1: NAN_LOSS}))
    trainer.train()
    assert trainer.state.global_step == 2
    (alarm,) = alarms(tmp_path)
    assert alarm["files"] == []
    assert "The batch could not be written (rank 0: FileExistsError" in guard.tripped
    assert "What to do: " in guard.tripped


def test_a_run_writes_so_many_files_and_says_when_it_is_full_also_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(non_finite, "MAX_FILES", 2)
    data = rows(8, {0: NAN_LOSS, 1: NAN_LOSS, 2: NAN_LOSS})
    saves = {"save_strategy": "steps", "save_steps": 2}
    make_trainer(tmp_path, [NonFiniteGuard("skip")], data, max_steps=2, **saves).train()
    guard = NonFiniteGuard("skip")
    make_trainer(tmp_path, [guard], data).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [len(alarm["files"]) for alarm in alarms(tmp_path)] == [1, 1, 0]
    assert "Not written: 1 more, for a run writes 2 at most" in alarms(tmp_path)[-1]["message"]


def test_nothing_is_written_where_it_is_not_wanted(tmp_path):
    make_trainer(tmp_path, [NonFiniteGuard(save_batches=False)], rows(4, {1: NAN_LOSS})).train()
    assert not (tmp_path / bad_batches.DIRECTORY).exists()
    assert alarms(tmp_path)[0]["files"] == []


def test_odd_inputs_are_written_all_the_same(tmp_path):
    """No input_ids; shared and transposed memory; what is no tensor; a tokenizer and a data set that fail."""
    whole = torch.arange(12.0).reshape(3, 4)
    inputs = {"pixels": whole.T, "again": whole, "use_cache": False}
    facts = {"step": 1, "rank": 0, "micro_batch": 1}
    name = save_bad_batch(tmp_path, facts, inputs, [], None)
    written = json.loads((tmp_path / name).read_text())
    assert (written["rows"], written["not_saved"]) == ([], ["use_cache"])
    assert written["tensors"] == {"pixels": "float32 [4, 3]", "again": "float32 [3, 4]"}
    torch.testing.assert_close(load_bad_batch(tmp_path / name), {"pixels": whole.T, "again": whole}, rtol=0, atol=0)

    class Fails:
        def decode(self, ids):
            raise OverflowError("no such token")

        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise RuntimeError("gone")

    name = save_bad_batch(tmp_path, facts, {"input_ids": torch.tensor([[3, 4]])}, Fails(), Fails())
    written = json.loads((tmp_path / name).read_text())
    assert written["dataset_rows_unknown"] == "reading the data set failed (RuntimeError: gone)"
    assert written["rows"][0]["text"] == "(not decoded: OverflowError: no such token)"


def test_an_attention_mask_says_what_is_padding_left_or_right(tmp_path):
    data = Dataset.from_list([{"input_ids": [7, 7, 7]}, {"input_ids": [7, 7]}, {"input_ids": [5, 6]}])
    batch = {
        "input_ids": torch.tensor([[7, 7, 7], [7, 7, 7], [0, 5, 6]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1]]),
    }
    name = save_bad_batch(tmp_path, {"step": 1, "rank": 0, "micro_batch": 1}, batch, data, None)
    found = json.loads((tmp_path / name).read_text())["rows"]
    assert [[row["index"] for row in sample["dataset_rows"]] for sample in found] == [[0], [1], [2]]


def test_samples_joined_in_one_row_are_named_one_by_one_and_a_row_that_is_stored_so_as_one(tmp_path):
    samples = [{"input_ids": [3, 4, 5], "labels": [3, 4, 5]}, {"input_ids": [3, 9], "labels": [-100, 9]}]
    batch = {
        "input_ids": torch.tensor([[3, 9, 3, 4, 5, 0, 0]]),
        "labels": torch.tensor([[-100, 9, -100, 4, 5, -100, -100]]),
        "position_ids": torch.tensor([[0, 1, 0, 1, 2, 3, 4]]),
    }
    facts = {"step": 1, "rank": 0, "micro_batch": 1}
    found = json.loads((tmp_path / save_bad_batch(tmp_path, facts, batch, samples, None)).read_text())["rows"]
    assert [(each["start"], each["tokens"], each["dataset_rows"][0]["index"]) for each in found] == [
        (0, 2, 1),
        (2, 3, 0),
    ]
    joined = [*samples, {"input_ids": [3, 9, 3, 4, 5]}]
    (found,) = json.loads((tmp_path / save_bad_batch(tmp_path, facts, batch, joined, None)).read_text())["rows"]
    assert (found["start"], found["tokens"], found["dataset_rows"][0]["index"]) == (0, 5, 2)


def test_a_batch_that_is_not_there_is_named():
    with pytest.raises(UserError, match=r"nowhere.safetensors' is not there"):
        load_bad_batch("nowhere.json")
