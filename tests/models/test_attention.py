from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.models import attention
from hf_recipes.models.attention import check_attention


@pytest.mark.parametrize("installed", [[], ["flash_attn"], ["flash_attn_interface"], ["kernels"], ["torch_npu"]])
@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3"])
def test_flash_attention_is_refused_where_nothing_has_it(name, installed, monkeypatch):
    monkeypatch.setattr(attention, "find_spec", lambda package: package if package in installed else None)
    if installed:
        check_attention(name)
    else:
        with pytest.raises(UserError, match="needs the package flash-attn"):
            check_attention(name)


@pytest.mark.parametrize("name", [None, "", "sdpa", "eager", "flex_attention", "kernels-community/flash-attn2"])
def test_others_need_no_package(name, monkeypatch):
    monkeypatch.setattr(attention, "find_spec", lambda package: None)
    check_attention(name)
