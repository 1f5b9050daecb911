"""An edit of several parts fits a tensor only where every part does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import TensorEntry
from hf_recipes.export.edits import Edit, Scaling
from hf_recipes.export.plan import _check_small_parts


def entry(size):
    return TensorEntry("x", "F32", (size,), 0, 4 * size, Path("x.safetensors"))


@pytest.mark.parametrize(("bias", "scaling"), [(3, 4), (4, 3), (3, 3)])
def test_a_part_that_fits_does_not_stand_for_one_that_does_not(bias, scaling):
    edit = Edit(bias=(entry(bias), 1.0), scaling=Scaling(entry(scaling), of_inputs=False), names=["b", "s"])
    with pytest.raises(UserError, match="which b, s of the adapter do not fit"):
        _check_small_parts("layer.bias", entry(4), edit)
    whole = Edit(bias=(entry(4), 1.0), scaling=Scaling(entry(4), of_inputs=False), names=["b", "s"])
    _check_small_parts("layer.bias", entry(4), whole)
