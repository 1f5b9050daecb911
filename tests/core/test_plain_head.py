from __future__ import annotations

from tiny_models import make_tiny_llama

from hf_recipes.core.plain_head import has_plain_head


def test_a_head_that_zero3_gathers_for_its_own_forward_alone_is_not_plain():
    model = make_tiny_llama(tied=False)
    assert has_plain_head(model)
    model.lm_head.weight.ds_id = 3  # DeepSpeed's mark on a parameter it has cut into shares
    assert not has_plain_head(model)


def test_logits_that_are_more_than_a_product_are_not_plain():
    model = make_tiny_llama()
    model.config.final_logit_softcapping = 30.0
    assert not has_plain_head(model)
