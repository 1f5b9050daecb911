"""The judges as metrics of `evaluate`, without the Hub. Importing `evaluate` takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("evaluate")
ROW = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, {}]}

SCRIPT = """
import json, socket
def refuse(*arguments): raise AssertionError("a metric asked the network")
socket.socket.connect = refuse
import evaluate
from hf_recipes.metrics import JsonFormat
metric = JsonFormat()
assert isinstance(metric, evaluate.Metric)
print(json.dumps(metric.compute(predictions=['{"a": 1}', 'Sure: {"a": 1}', "no", "[1]"], references=["", "", "", ""])))
"""


@pytest.mark.trials
def test_a_metric_computes_without_a_network_and_writes_no_texts(tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"json_strict": 0.5, "json_lenient": 0.75, "json_extra_prose": 0.25}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.trials
def test_each_metric_by_hand():
    from hf_recipes.metrics import CodeFormat, InstructionFollowing, JsonFields, RegexFormat, SchemaFormat, XmlFormat

    schema = {"type": "object", "required": ["a"]}
    found = SchemaFormat(schema).compute(predictions=['{"a": 1}', '{"b": 1}'])
    assert found == {"schema_strict": 0.5, "schema_lenient": 0.5, "schema_extra_prose": 0.0}
    assert RegexFormat(r"\d+").compute(predictions=["12", "no 1"])["regex_lenient"] == 1
    assert XmlFormat("a").compute(predictions=["<a/>", "<b/>"])["xml_strict"] == 0.5
    assert CodeFormat().compute(predictions=["x = 1", "well"])["code_strict"] == 0.5
    assert JsonFields().compute(predictions=['{"a": 1}', "x"], references=['{"a": 1, "b": 2}', "x"]) == {
        "exact": 0.5,
        "parses": 1.0,
        "fields_right": 0.5,
        "field.a": 1.0,
        "field.b": 0.0,
    }
    assert InstructionFollowing().compute(predictions=['"a"', '"a, b"', 'Sure:\n"c"'], instructions=[ROW] * 3) == {
        "prompt_strict": pytest.approx(1 / 3),
        "prompt_lenient": pytest.approx(2 / 3),
        "instruction_strict": pytest.approx(4 / 6),
        "instruction_lenient": pytest.approx(5 / 6),
    }


@pytest.mark.trials
def test_rows_can_be_added_one_by_one():
    from hf_recipes.metrics import JsonFormat

    metric = JsonFormat()
    metric.add(prediction="[1]")
    metric.add_batch(predictions=["no", "{}"])
    assert metric.compute()["json_strict"] == pytest.approx(2 / 3)


@pytest.mark.trials
def test_text_scores():
    from hf_recipes.core.errors import UserError
    from hf_recipes.metrics import TextScores

    scores = TextScores(["f1", "rouge", "bleu", "chrf"]).compute(
        predictions=["one two three four"], references=["one two three four"]
    )
    assert scores == pytest.approx(dict.fromkeys(("f1", "rouge1", "rouge2", "rougeL", "bleu", "chrf"), 1.0))
    with pytest.raises(UserError, match="did you mean 'rouge'"):
        TextScores(["rouges"])
