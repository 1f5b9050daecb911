"""Read from the source, so that what is written later is held to it too: who may load or start something."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import hf_recipes

ROOT = Path(hf_recipes.__file__).parent
# The only places where text of a recipe or run is given to a shell or to Python: see docs/security.md.
SHELLS = {"training/on_finish.py", "checkpoints/preemption/notice.py"}
LOADS_PYTHON = {"evaluation/judges/custom.py"}
WORDS = re.compile(
    r"Auto[A-Z]|trust_remote_code|pickle|joblib|marshal|torch\.load|np\.load|numpy\.load|\beval\(|\bexec\(|os\.system"
    r"|os\.popen|yaml|shell|spec_from_file|runpy|extractall|unpack_archive"
)


def named(node: ast.expr) -> str:
    """``a.b.c`` of a chain of attributes; ``().c`` where it begins with anything but a name."""
    if isinstance(node, ast.Attribute):
        return f"{named(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "()"


@functools.cache
def calls() -> list[tuple[str, ast.Call, str]]:
    """File, call and the name of what is called, of all files that hold one of `WORDS`: the others need no parsing."""
    return [
        (file.relative_to(ROOT).as_posix(), node, named(node.func))
        for file in sorted(ROOT.rglob("*.py"))
        if WORDS.search(text := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]


def keywords(node: ast.Call) -> dict[str, str]:
    return {each.arg or "**": ast.unparse(each.value) for each in node.keywords}


def test_transformers_is_always_told_whether_foreign_code_may_run():
    """Left out, `resolve_trust_remote_code` asks on standard input, which may be a pipe that says yes."""
    seen = 0
    for file, node, name in calls():
        kind, _, method = name.rpartition(".")
        if method in ("from_pretrained", "from_config") and kind.split(".")[-1].startswith("Auto"):
            if kind.endswith("AutoHfQuantizer"):  # knows its own classes only
                continue
            seen += 1
            assert "trust_remote_code" in keywords(node), f"{file}:{node.lineno}: {name} without trust_remote_code"
    assert seen > 15


def test_only_what_a_recipe_asks_for_is_trusted():
    for file, node, name in calls():
        given = keywords(node).get("trust_remote_code")
        assert given != "True", f"{file}:{node.lineno}: {name} trusts code that nobody asked for"


def test_nothing_is_unpickled():
    loads = 0
    for file, node, name in calls():
        assert name not in ("pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load", "marshal.loads"), file
        if name.endswith("torch.load"):
            loads += 1
            assert keywords(node).get("weights_only") == "True", f"{file}:{node.lineno}"
        if name in ("np.load", "numpy.load"):
            assert "allow_pickle" not in keywords(node), f"{file}:{node.lineno}"
    assert loads > 2


def test_text_becomes_code_in_the_places_that_the_docs_name():
    shells, python = set(), set()
    for file, node, name in calls():
        assert name not in ("eval", "exec", "os.system", "os.popen", "yaml.unsafe_load", "yaml.full_load"), file
        if keywords(node).get("shell") not in (None, "False"):
            shells.add(file)
        if name.endswith("spec_from_file_location") or name.startswith("runpy."):
            python.add(file)
        if name in ("yaml.load", "yaml.parse", "yaml.compose"):
            assert keywords(node).get("Loader") in ("_Loader", "yaml.SafeLoader"), f"{file}:{node.lineno}"
    assert (shells, python) == (SHELLS, LOADS_PYTHON)


def test_archives_are_not_unpacked_by_names_of_their_own():
    for file, _, name in calls():
        assert not name.endswith((".extractall", "unpack_archive")), file
