"""Which message of a log is the root, what is unknown, and what its curves say."""

from __future__ import annotations

import io
import json

import pytest

from hf_recipes.doctor.log.diagnosis import diagnose_log, render
from hf_recipes.doctor.log.scan import scan

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB"
TIMEOUT = (
    "[rank{0}]:[E602 11:17:52.185053341 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 "
    "milliseconds before timing out."
)
PEER = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection "
    "reset by peer"
)
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


def traceback(error: str, *frames: tuple[str, str], rank: int | None = None) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, function in frames or (("train.py", "main"),):
        lines += [f'  File "{file}", line 10, in {function}', "    call()"]
    mark = "" if rank is None else f"[rank{rank}]: "
    return "\n".join(mark + line for line in [*lines, error])


def diagnosed(*parts: str):
    return diagnose_log(io.BytesIO("\n".join(parts).encode()))


@pytest.mark.parametrize(
    ("phase", "frames", "word"),
    [
        (
            "forward",
            [("transformers/trainer.py", "compute_loss"), ("torch/nn/modules/module.py", "_call_impl")],
            "max_",
        ),
        (
            "backward",
            [("accelerate/accelerator.py", "backward"), ("torch/nn/modules/module.py", "_call_impl")],
            "bucket",
        ),
        ("optimizer step", [("accelerate/optimizer.py", "step"), ("torch/optim/adamw.py", "step")], "paged_adamw_8bit"),
        ("evaluation", [("transformers/trainer.py", "evaluate"), ("torch/nn/modules/module.py", "_call_impl")], "only"),
        ("loading", [("transformers/modeling_utils.py", "from_pretrained")], "qlora"),
    ],
)
def test_out_of_memory_is_told_by_phase(phase, frames, word):
    found = diagnosed(traceback(OOM, *frames))
    assert (found.root.name, found.root.phase) == ("gpu_out_of_memory", phase)
    told = render(found)
    assert f"in the phase: {phase}" in told
    assert "2.00 GiB more were asked for" in told
    assert word in told.split("cure:")[1]


def test_the_rank_with_a_fault_of_its_own_is_the_root_of_a_cascade():
    """The others were only left: they print first, here."""
    found = diagnosed(
        *(traceback(PEER, rank=rank) for rank in (0, 1, 3)), TIMEOUT.format(4), traceback(OOM, rank=2), CHILD
    )
    assert (found.root.name, found.root.rank) == ("gpu_out_of_memory", 2)
    assert [hit.name for hit in found.others] == ["peer_closed", "nccl_timeout", "child_failed"]
    assert found.unknown is None


def test_without_a_fault_the_first_symptom_is_the_root_and_all_ranks_are_told():
    found = diagnosed(TIMEOUT.format(5), TIMEOUT.format(0), TIMEOUT.format(7), CHILD)
    assert (found.root.name, found.root.rank, found.ranks) == ("nccl_timeout", 5, (0, 5, 7))
    assert "Rank 5 waited for the others in ALLREDUCE until its patience of 600 s was over" in render(found)


def test_of_two_faults_the_one_of_the_rank_that_failed_first_is_the_root():
    root = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 3 (local_rank: 3)",
        "  exitcode  : 1 (pid: 9)",
    ]
    found = diagnosed(traceback("IndexError: Target 5 is out of bounds.", rank=1), traceback(OOM, rank=3), CHILD, *root)
    assert (found.root.name, found.root.rank) == ("gpu_out_of_memory", 3)


@pytest.mark.parametrize(
    "line",
    [
        "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py --epochs 400",
        "[2024-03-01 10:00:00,000] [ERROR] [launch.py:322:sigkill_handler] ['python', 'train.py'] exits with "
        "return code "
        "= -9",
        "E1130 19:18:00.994000 4046 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) "
        "local_rank"
        ": 0 (pid: 4149) of binary: python",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
    ],
)
def test_a_kill_is_told_by_every_launcher_in_its_way(line):
    assert diagnosed(line).root.name == "killed_by_system"


def test_what_is_not_known_is_said_to_be_so():
    found = diagnosed("begin", traceback("mymodule.OddError: the moon is full", rank=1), CHILD)
    assert (found.root, found.exit_code) == (None, 0)
    assert (found.unknown.text, found.unknown.rank) == ("mymodule.OddError: the moon is full", 1)
    assert "Nothing known in here; the last error is, at line 5 (rank 1):" in render(found)


def test_an_unknown_error_before_a_lost_peer_comes_first():
    found = diagnosed(traceback("ValueError: odd", rank=2), traceback(PEER, rank=0))
    assert found.root.name == "peer_closed"
    assert found.unknown.text == "ValueError: odd"
    assert render(found).index("ValueError: odd") < render(found).index("peer_closed")


def test_an_unknown_error_that_a_known_one_is_chained_to_is_explained():
    chained = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    found = diagnosed(traceback("KeyError: 'q'") + chained + traceback("IndexError: index out of range in self"))
    assert (found.root.name, found.unknown) == ("token_out_of_range", None)


def test_a_message_of_several_lines_explains_its_first():
    found = diagnosed(
        traceback("RuntimeError: Error(s) in loading state_dict for Linear:"),
        "\tsize mismatch for weight: copying a param with shape torch.Size([3, 2]) from checkpoint, the shape in "
        "current "
        "model is torch.Size([2, 2]).",
    )
    assert (found.root.name, found.unknown) == ("size_mismatch", None)


def test_words_right_behind_a_progress_bar_are_read():
    found = diagnosed("  1%|          | 24/1752 [01:08<1:22:56,  2.88s/it]" + TIMEOUT.format(5))
    assert (found.root.name, found.root.rank) == ("nccl_timeout", 5)


def test_a_box_drawn_by_rich_is_a_traceback_too():
    box = [
        "╭──────────────── Traceback (most recent call last) ────────────────╮",
        "│ /x/transformers/trainer.py:3060 in compute_loss                    │",
        "│ ❱ 3060 │   outputs = model(**inputs)                               │",
        "│ /x/torch/nn/modules/module.py:1518 in _call_impl                   │",
        "╰────────────────────────────────────────────────────────────────────╯",
        OOM,
    ]
    assert diagnosed(*box).root.phase == "forward"


@pytest.mark.parametrize(
    "line",
    [
        "{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': {rate}, 'epoch': {epoch}}}",
        "[INFO|2026-01-01 10:00:00] logging.py:143 >> {{'loss': '{loss}', 'grad_norm': '{norm}', 'learning_rate': "
        "'{rate}', 'epoch': '{epoch}'}}",
        '{{"loss": {loss}, "grad_norm": {norm}, "learning_rate": {rate}, "epoch": {epoch}}}',
        "{{'loss': np.float64({loss}), 'grad_norm': np.float64({norm}), 'learning_rate': {rate}, 'epoch': {epoch}}}",
    ],
)
@pytest.mark.parametrize(
    ("loss", "norm", "healthy"), [("0.0", "nan", False), ("nan", "nan", False), ("1.1", "0.5", True)]
)
def test_curves_are_read_as_every_tool_prints_them(line, loss, norm, healthy):
    rows = [
        ("2.0", "0.6"),
        ("1.9", "0.5"),
        ("1.5", "0.5"),
        ("1.3", "0.4"),
        *[(loss.replace("1.1", f"1.{last}"), norm) for last in range(6)],
    ]
    log = [line.format(loss=a, norm=b, rate=2e-05, epoch=number / 10) for number, (a, b) in enumerate(rows, 1)]
    found = diagnosed(*log)
    assert found.curves.healthy == healthy
    assert found.exit_code == int(not healthy)
    if not healthy:
        assert found.curves.causes[0].name == "not_finite"
        assert "halve learning_rate (2e-05 → 1e-05)" in found.curves.causes[0].change


def test_steps_come_from_the_log_where_it_tells_them():
    swift = [
        f'{{"loss": {3 - 0.01 * step}, "grad_norm": 0.5, "global_step/max_steps": "{step}/90"}}'
        for step in range(5, 50, 5)
    ]
    assert "45 of 90 steps" in diagnosed(*swift).curves.summary
    factory = '{{"current_steps": {0}, "total_steps": 90, "loss": {0}, "lr": 1e-05, "epoch": {0}, "percentage": 1.1}}'
    found = diagnosed(*(factory.format(step) for step in range(5, 50, 5))).curves.summary
    assert "45 of 90 steps" in found
    assert "learning rate up to 1e-05" in found
    bars = [
        text
        for step in range(10, 60, 10)
        for text in (
            f" 5%|█ | {step}/500 [00:10<01:00,  1.00it/s]",
            f"{{'loss': {3 - 0.01 * step}, 'epoch': {step / 500}}}",
        )
    ]
    assert "50 of 500 steps" in diagnosed(*bars).curves.summary


@pytest.mark.parametrize(("equal", "healthy"), [(6, True), (12, False)])
def test_a_few_equal_losses_may_be_rounding_and_many_are_none(equal, healthy):
    losses = [2 - 0.01 * number for number in range(30)] + [0.4873] * equal
    log = [
        f"{{'loss': '{loss:.4g}', 'learning_rate': '1e-05', 'epoch': {number}}}" for number, loss in enumerate(losses)
    ]
    assert diagnosed(*log).curves.healthy == healthy


def test_of_several_runs_in_one_log_the_last_one_counts():
    bad = [f"{{'loss': nan, 'epoch': {number}}}" for number in range(1, 4)]
    good = [f"{{'loss': {2 - number / 10}, 'epoch': {number}}}" for number in range(1, 4)]
    assert diagnosed(*bad, *good).curves.healthy
    assert not diagnosed(*good, *bad).curves.healthy


def test_memory_does_not_grow_with_errors_or_ranks():
    seen = scan(
        io.BytesIO(b"".join(b"[rank%d]: IndexError: index out of range in self\n" % (n % 3000) for n in range(9000)))
    )
    assert seen.counts == {"token_out_of_range": 9000}
    assert len(seen.hits) == 64


def test_binary_junk_is_no_fault_and_no_crash():
    found = diagnose_log(io.BytesIO(bytes(range(256)) * 5000))
    assert (found.root, found.unknown, found.exit_code) == (None, None, 0)
    assert diagnose_log(io.BytesIO(b"")).exit_code == 0


def test_the_answer_is_json():
    values = diagnosed(traceback(OOM, rank=0), "{'loss': nan}").as_values()
    assert json.loads(json.dumps(values))["root"]["name"] == "gpu_out_of_memory"
    assert values["curves"]["causes"][0]["name"] == "not_finite"
