"""Any mixture of LoRA's options on any kind of layer, drawn at random, against PEFT's merge in memory, to the bit; over
tied weights, where PEFT's merge is wrong, against the live adapter."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from algebra_helpers import make_whisper, peft_state, plan_of, save_random, values_of
from export_helpers import live_logits, logits, make_gpt2, save_base, tensors_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from tiny_models import make_tiny_llama
from transformers import AutoConfig, AutoModelForCausalLM

FP32 = torch.float32
DTYPES = [torch.bfloat16, torch.float16, FP32]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_folder")]
_FOLDER: list[Path] = []
# A failure is shown as drawn: to shrink it, hundreds of models would be built.
RELAXED = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "phases": [Phase.explicit, Phase.generate],
    "report_multiple_bugs": False,
}


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    _FOLDER.append(tmp_path_factory.mktemp("options"))


def llama():
    return make_tiny_llama(64, tied=False, attention_bias=True)


# Model → modules that may be targets, and such that may be trained in full.
MODELS = {
    llama: (
        ["q_proj", "v_proj", "o_proj", "down_proj", "embed_tokens", "lm_head"],
        ["lm_head", "embed_tokens", "norm"],
    ),
    make_gpt2: (["c_attn", "mlp.c_proj", "attn.c_proj", "c_fc"], ["ln_f"]),
    make_whisper: (["conv1", "conv2", "q_proj", "fc1"], ["layer_norm"]),
}


@cache
def base_of(make, dtype):
    return save_base(Path(mkdtemp(dir=_FOLDER[-1])), make(), dtype=dtype)


@st.composite
def options(draw, targets, saved):
    chosen = draw(st.lists(st.sampled_from(targets), min_size=1, max_size=4, unique=True))
    number = st.integers(1, 9)
    lora = {
        "target_modules": chosen,
        "r": draw(number),
        "lora_alpha": draw(number),
        "use_rslora": draw(st.booleans()),
        "bias": draw(st.sampled_from(["none", "all", "lora_only"])),
        "rank_pattern": draw(st.dictionaries(st.sampled_from(chosen), number, max_size=2)),
        "alpha_pattern": draw(st.dictionaries(st.sampled_from(chosen), number, max_size=2)),
        "init_lora_weights": draw(st.sampled_from([True, False])),
    }
    # `lora_bias` is for layers with a bias, and not for DoRA.
    lora[draw(st.sampled_from(["use_dora", "lora_bias", "inference_mode"]))] = True
    lora["inference_mode"] = False
    if any(name in ("down_proj", "lm_head", "embed_tokens", "o_proj", "q_proj", "v_proj") for name in chosen):
        lora.pop("lora_bias", None)
    if draw(st.booleans()):
        lora["modules_to_save"] = [
            name for name in draw(st.lists(st.sampled_from(saved))) if name not in chosen
        ] or None
    free = "embed_tokens" not in chosen and "embed_tokens" not in (lora.get("modules_to_save") or [])
    if "embed_tokens" in targets and free and draw(st.booleans()):
        rows = draw(st.lists(st.integers(0, 63), min_size=1, max_size=4, unique=True))
        lora["trainable_token_indices"] = {"embed_tokens": rows}
    return lora


@st.composite
def cases(draw):
    make = draw(st.sampled_from(list(MODELS)))
    return make, draw(st.sampled_from(DTYPES)), draw(options(*MODELS[make]))


@settings(max_examples=6, **RELAXED)
@given(cases())
def test_any_mixture_of_options_is_merged_to_pefts_bits(case):
    make, dtype, lora = case
    base = base_of(make, dtype)
    adapter = save_random(Path(mkdtemp(dir=_FOLDER[-1])), make().to(dtype), LoraConfig(**lora))
    golden, before = peft_state(make().to(dtype), adapter), tensors_of(base)
    values = values_of(plan_of(adapter, base, dtype))
    for name, value in values.items():
        twice = name == "model.embed_tokens.weight" and dtype != FP32 and not lora.get("use_dora")
        if twice and "embed_tokens" in lora["target_modules"]:  # PEFT rounds twice there
            torch.testing.assert_close(value, golden[name], rtol=2**-6, atol=1e-3)
        else:
            assert torch.equal(value, golden[name]), name
    assert any(not torch.equal(values[name], before[name]) for name in values)


TIED = ["embed_tokens", "lm_head", "q_proj"]


@settings(max_examples=6, **RELAXED)
@given(options(TIED, ["embed_tokens", "lm_head"]), st.booleans())
def test_over_tied_weights_any_mixture_computes_what_the_live_adapter_does(lora, together):
    base = base_of(make_tied, FP32)
    lora |= {"ensure_weight_tying": together, "task_type": "CAUSAL_LM"}
    if together:  # PEFT refuses to tie an adapter to a module trained in full
        lora.pop("modules_to_save", None)
        lora["rank_pattern"] = {}  # a tied head has the rank of the embedding, whatever they say
    adapter = save_random(
        Path(mkdtemp(dir=_FOLDER[-1])), AutoModelForCausalLM.from_pretrained(base), LoraConfig(**lora)
    )
    plan = plan_of(adapter, base, FP32)
    config = AutoConfig.from_pretrained(base, tie_word_embeddings=not plan.untied)
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(values_of(plan), strict=False)
    torch.testing.assert_close(logits(model), live_logits(base, adapter), rtol=0, atol=5e-5)


def make_tied():
    return make_tiny_llama(64, tied=True)
