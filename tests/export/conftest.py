from __future__ import annotations

import pytest
from export_helpers import save_adapter, save_base


@pytest.fixture
def base(tmp_path):
    """A fresh untied base in fp32, free to be spoilt."""
    return save_base(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path, base):
    """A fresh random adapter on q_proj and v_proj of `base`."""
    return save_adapter(tmp_path / "adapter", base, target_modules=["q_proj", "v_proj"])
