from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.harness_files import refuse_code

DATA = "task: mine\ndataset_path: json\ndoc_to_text: '{{question}}'\n"


def test_data_alone_pass(tmp_path):
    (tmp_path / "base.yaml").write_text("output_type: multiple_choice\ninclude: task.yaml\n")  # round in a circle
    task = tmp_path / "task.yaml"
    task.write_text(DATA + "include: base.yaml\nnum_fewshot: 2\n")
    refuse_code(task)
    task.write_text('{"task": "mine", "dataset_path": "json"}')
    refuse_code(task)


@pytest.mark.parametrize("tag", ["!function utils.process", "!!python/object/apply:os.system ['true']", "!other x"])
def test_code_is_refused_with_its_line(tmp_path, tag):
    task = tmp_path / "task.yaml"
    task.write_text(DATA + f"process_docs: {tag}\n")
    with pytest.raises(UserError, match=r"task.yaml, line 4 has .*, which would run Python"):
        refuse_code(task)


def test_code_in_an_included_file_is_refused(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.yaml").write_text("metric_list:\n- metric: !function m.f\n")
    task = tmp_path / "task.yaml"
    task.write_text(DATA + "include: [shared/base.yaml]\n")
    with pytest.raises(UserError, match=r"base.yaml, line 2 has !function"):
        refuse_code(task)
    task.write_text(DATA + "include: absent.yaml\n")
    with pytest.raises(UserError, match=r"absent.yaml' cannot be read"):
        refuse_code(task)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a: [", "is not valid YAML"),
        (b"- a", "is no task"),
        (b"", "is no task"),
        (b"\xff\xfe\x00", "UTF-8|valid YAML"),
    ],
)
def test_other_files(tmp_path, content, sentence):
    task = tmp_path / "task.yaml"
    task.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        refuse_code(task)
