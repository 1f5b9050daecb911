"""`hf-recipes doctor --network`: on this machine's ranks, from a file, and its wrong uses."""

from __future__ import annotations

import json

import pytest

from hf_recipes.cli.main import main
from hf_recipes.doctor.network.curve import COLLECTIVES
from hf_recipes.doctor.network.links import Link
from hf_recipes.doctor.network.measured import Measured
from hf_recipes.doctor.network.report import as_values
from hf_recipes.doctor.network.traffic import WEIGHED

WEIGHABLE = ("--strategy", "ddp", "--parameters", "1e9", "--step_seconds", "1")


def timing(collective, size, seconds):
    from hf_recipes.doctor.network.curve import Timing

    return Timing(collective, size, seconds, 4)


@pytest.fixture
def measured(tmp_path):
    """A measurement in a file: every collective at 1 GB/s; four ranks on two machines."""
    hosts = ("node0", "node0", "node1", "node1")
    links = tuple(
        Link(source, target, hosts[source], hosts[target], 1e9, 1e-4)
        for source in range(4)
        for target in range(4)
        if source != target
    )
    timings = tuple(timing(name, size, size / 1e9) for name in COLLECTIVES for size in (2**10, 2**26))
    path = tmp_path / "network.json"
    path.write_text(json.dumps(as_values(Measured("gloo", hosts, timings, links))))
    return str(path)


@pytest.mark.slow
@pytest.mark.trials
def test_the_network_of_this_machine_is_measured_and_weighed(tmp_path, capfd):
    """1,000 parameters and an hour of computing: any network can live with that."""
    file = tmp_path / "network.json"
    given = ["--strategy", "zero2", "--parameters", "1e3", "--step_seconds", "3600", "--largest", "64KiB"]
    assert main(["doctor", "--network", "--num_processes", "2", "--output", str(file), "--json", *given]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["verdict"]["ok"]
    assert told["backend"] == "gloo"
    assert len(told["hosts"]) == 2
    assert {row["collective"] for row in told["collectives"]} == set(COLLECTIVES)
    assert [row["size_bytes"] for row in told["collectives"] if row["collective"] == "broadcast"] == [
        1 << 10,
        1 << 12,
        1 << 14,
        1 << 16,
    ]
    assert all(row["seconds"] > 0 for row in told["collectives"])
    assert [(link["source"], link["target"]) for link in told["links"]] == [(0, 1), (1, 0)]
    assert main(["doctor", "--measured", str(file), *given[:-2], "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["collectives"] == told["collectives"]


@pytest.mark.parametrize(("seconds", "code", "words"), [("100", 0, "can live with"), ("5", 1, "more than computation")])
def test_more_than_half_of_a_step_is_exit_code_1(seconds, code, words, measured, capsys):
    given = ["--strategy", "zero3", "--parameters", "7e9", "--step_seconds", seconds]
    assert main(["doctor", "--measured", measured, *given]) == code
    told = capsys.readouterr().out
    assert words in told
    assert "zero3 passes 42 GB a rank and step" in told  # 3 × 7e9 × 2 bytes
    assert "gloo, 4 ranks on 2 machines (node0, node1)" in told
    assert "node0 → node1" in told


def test_a_recipe_is_weighed_by_its_plan(measured, tiny_model_dir, tmp_path, capsys):
    (tmp_path / "data.jsonl").write_text('{"instruction": "Say yes", "output": "yes"}\n' * 20)
    recipe = tmp_path / "my.yaml"
    recipe.write_text(
        f"model_name_or_path: {tiny_model_dir}\nmethod: full\ndatasets:\n- path: {tmp_path}/data.jsonl\n"
        "max_length: 64\nbf16: false\neval_share: 0\n"
    )
    code = main(["doctor", "--measured", measured, "--config", str(recipe), "--strategy", "ddp", "--json"])
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    # A tiny Llama of 32,992 weights, fp32: 2 × 4 bytes each.
    parameters = verdict["passed_bytes"] / 8
    assert (verdict["strategy"], parameters) == ("ddp", pytest.approx(33_000, rel=0.2))
    assert code == (0 if verdict["ok"] else 1)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--strategy", "ddp"], "--strategy is for the network: write --network too"),
        (["nowhere", "--quick"], "--quick is for this machine"),
        ([".", "elsewhere"], "one run or log at a time"),
        (["--learning_rate=1"], "is a recipe's key, and doctor reads none here"),
        (["--netwrok"], "did you mean 'network'"),
        (["--network", "--num_processes", "1"], "one process has no network"),
        (["--network", "--num_processes", "2", "--num_machines", "2"], "give the number of this one"),
        (["--network", "--num_machines", "2", "--machine_rank", "0"], "give --main_process_ip"),
        (["--network", "--num_processes", "two"], "'two' is no whole number"),
        (["--network", "--largest", "1TB"], "'1TB' is no size from 4KiB to 16GiB"),
        (["--network", "--strategy", "ddp", "--parameters", "7e9"], "needs --step_seconds too"),
        (["--network", "--strategy", "ddp", "--parameters", "-1", "--step_seconds", "1"], "'-1' is no whole number"),
        (["--network", "--learning_rate", "1"], "is a recipe's key: give the recipe too"),
        (["--measured", "nowhere.json"], "nowhere.json"),
        (["--network", "--patience", "1e300"], "--patience: '1e300' is no number from 0.001 to 86400"),
        (["--network", "--largest", "1KiB"], "'1KiB' is no size"),
        (["--network", "--parameters", "7e9"], "--parameters is a figure of a strategy: give that too"),
        (["--network", "--config", "my.yaml", "--passes", "4"], "--passes is what the recipe of --config says"),
        (["--network", "--lerning", "3"], "'--lerning' is neither an option of `hf-recipes doctor` nor a recipe's key"),
        (["--lerning=3"], "'--lerning=3' is neither an option"),
        (["network"], "'network' is neither a run directory nor a log"),
        (["--network", "network"], "'network' is neither an option"),
        (["--network", "--strategy", "pp"], "'pp' is not weighed against a network"),
        (["--network", *WEIGHABLE, "--strategy", "tp"], "--hidden_size"),
        (["--network", *WEIGHABLE, "--passes", "0.5"], "--passes: '0.5' is no whole number from 1 to"),
        (["--network", *WEIGHABLE, "--passes", "1e300"], "--passes: '1e300' is no whole number"),
        (["--network", *WEIGHABLE, "--passes", "nan"], "--passes: 'nan' is no whole number"),
        (["--network", *WEIGHABLE, "--layers", "0.5"], "--layers: '0.5' is no whole number"),
        (["--network", *WEIGHABLE, "--hidden_size", "-8"], "--hidden_size: '-8' is no whole number"),
        (["--network", *WEIGHABLE, "--tokens", "inf"], "--tokens: 'inf' is no whole number"),
        (["--network", *WEIGHABLE, "--trained_parameters", "2e12"], "2e12 is more than --parameters 1e9"),
        (["--network", *WEIGHABLE, "--step_seconds", "1e300"], "--step_seconds: '1e300' is no number from"),
    ],
)
def test_wrong_use_is_one_sentence(argv, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *argv]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "other.json").write_text('{"hosts": []}')
    assert main(["doctor", "--measured", str(tmp_path / "other.json")]) == 2
    assert "is no measurement" in capsys.readouterr().err


def test_an_unknown_strategy_is_said(measured, capsys):
    given = ["--strategy", "zero4", "--parameters", "1e9", "--step_seconds", "1"]
    assert main(["doctor", "--measured", measured, *given]) == 2
    assert "'zero4' is not weighed against a network (did you mean 'zero" in capsys.readouterr().err
    assert "zero3" in WEIGHED


@pytest.mark.parametrize(
    "given",
    [["--network"], ["--output", "again.json"], ["--num_processes", "2"], ["--largest", "1MiB"], ["--patience", "9"]],
)
def test_what_a_measurement_takes_is_refused_where_none_is_made(given, measured, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--measured", measured, *given]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"hf-recipes: {given[0]} is for a measurement, and --measured reads an earlier one: leave one of the two out.\n"
    )
    assert not (tmp_path / "again.json").exists()


@pytest.mark.parametrize("strategy", ["pp", "cp", "hsdp"])
def test_a_recipe_of_a_strategy_that_is_not_weighed_is_refused_before_its_model_is_read(
    strategy, measured, tmp_path, capsys
):
    recipe = tmp_path / "my.yaml"
    recipe.write_text(
        f"model_name_or_path: {tmp_path}/nothing\ndatasets:\n- path: {tmp_path}/nothing.jsonl\nstrategy: {strategy}\n"
    )
    assert main(["doctor", "--measured", measured, "--config", str(recipe)]) == 2
    assert f"'{strategy}' is not weighed against a network" in capsys.readouterr().err


def test_a_first_machine_without_an_address_is_refused_before_ranks_start(capfd):
    given = ["--num_machines", "2", "--machine_rank", "0", "--main_process_ip", "no.such.host.invalid"]
    assert main(["doctor", "--network", *given]) == 2
    told = capfd.readouterr().err
    assert "--main_process_ip: 'no.such.host.invalid' has no address" in told
    assert told.count("\n") == 1
