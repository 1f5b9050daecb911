from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.export.bases.identity import check_identity

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def snapshot(tmp_path):
    """A model in a Hub cache, at commit NEW."""
    directory = tmp_path / "models--some--model" / "snapshots" / NEW
    directory.mkdir(parents=True)
    return directory


def test_m13_another_revision_of_a_hub_model_is_refused_unless_meant(snapshot):
    recorded = {"name_or_path": "some/model", "revision": OLD, "weights_sha256": None}
    with pytest.raises(UserError, match=rf"revision {NEW}; recorded: {OLD}"):
        check_identity(snapshot, recorded, allow_other=False)
    assert check_identity(snapshot, recorded, allow_other=True) == "other"


def test_m13_the_same_revision_is_the_same(snapshot):
    assert check_identity(snapshot, {"revision": NEW, "weights_sha256": None}, allow_other=False) == "same"


@pytest.mark.parametrize("recorded", [{}, {"revision": None}, {"revision": "main", "weights_sha256": None}])
def test_m13_what_was_not_recorded_is_unknown_and_not_the_same(snapshot, recorded):
    assert check_identity(snapshot, recorded, allow_other=False) == "unknown"
