"""The formula against real steps of tiny models on the CPU: every allocation, followed by the profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from memory_moves import highest_memory

from hf_recipes.plan.memory.estimate import estimate_memory
from hf_recipes.plan.read_geometry import read_geometry
from hf_recipes.plan.settings import TrainingSettings

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
QWEN3 = {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
# Bytes besides the step's tensors: token ids, step counts, working space of kernels, whose size does not grow.
_SMALL = 300_000


def _peak(model: Any, settings: TrainingSettings) -> float:
    """Bytes at the fullest moment of the second of two steps, weights included."""
    import torch

    from hf_recipes.training.hidden_states import last_hidden_states
    from hf_recipes.training.loss import supervised_cross_entropy

    model.train()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], fused=True)
    ids = torch.randint(3, 1000, (settings.micro_batch, settings.tokens))
    dtype = getattr(torch, settings.autocast_dtype or "float32")
    head = model.get_output_embeddings()

    def step() -> None:
        with torch.autocast("cpu", dtype, enabled=settings.autocast_dtype is not None):
            hidden = last_hidden_states(model, head, {"input_ids": ids})
        hidden = hidden.float()
        with torch.autocast("cpu", dtype, enabled=settings.autocast_dtype is not None):
            loss = supervised_cross_entropy(hidden, head.weight, head.bias, ids)
        del hidden
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    start = sum(each.untyped_storage().nbytes() for each in (*model.parameters(), *model.buffers()))
    start += sum(t.nbytes for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t))
    return start + highest_memory(step)


def _lora(**settings: Any) -> Callable[[Any], Any]:
    def attach(model: Any) -> Any:
        from hf_recipes.models.methods.lora import LoraSettings, attach_lora

        return attach_lora(model, LoraSettings(**{"r": 4, "dropout": 0.0, **settings}))

    return attach


FULL = TrainingSettings(
    method="full", weights_dtype="float32", autocast_dtype=None, micro_batch=4, tokens=256, loss="chunked"
)
CASES: dict[str, tuple[dict[str, Any], Any, dict[str, Any], float]] = {
    "full": (LLAMA, None, {}, 0.01),
    "tied": ({**LLAMA, "tie_word_embeddings": True}, None, {}, 0.01),
    "eager": (LLAMA, None, {"attention": "eager"}, 0.02),
    "qwen3": (QWEN3, None, {}, 0.02),
    "checkpointed": (LLAMA, None, {"checkpointing": "all"}, 0.02),
    "autocast": (LLAMA, None, {"autocast_dtype": "bfloat16"}, 0.02),
    "lora": (LLAMA, _lora(target_modules="all-linear", dropout=0.1), {"method": "lora", "lora_dropout": 0.1}, 0.02),
    "lora in 16 bits": (
        LLAMA,
        _lora(),
        {"method": "lora", "weights_dtype": "bfloat16", "autocast_dtype": "bfloat16"},
        0.03,
    ),
    "dora": (LLAMA, _lora(use_dora=True), {"method": "dora"}, 0.05),
    "mixtral": (MIXTRAL, None, {}, 0.05),
    # PEFT adds the matrices' product to the weights of all experts, anew in each forward pass.
    "lora on experts": (
        MIXTRAL,
        _lora(target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
        {"method": "lora"},
        0.03,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_real_step_takes_what_is_estimated(name: str) -> None:
    import torch
    import transformers

    config, attach, changes, tolerance = CASES[name]
    settings = TrainingSettings(**{**{key: getattr(FULL, key) for key in FULL.__dataclass_fields__}, **changes})
    values = {key: value for key, value in config.items() if key != "model_type"}
    built = transformers.AutoConfig.for_model(config["model_type"], **values)
    built._attn_implementation = settings.attention
    torch.manual_seed(0)
    model = getattr(transformers, config["architectures"][0])(built).to(getattr(torch, settings.weights_dtype))
    model.config.use_cache = False
    if attach is not None:
        model = attach(model)
    if settings.checkpointing == "all":
        model.activation_checkpointing_enable()
    estimated = estimate_memory(read_geometry(config, attach), settings, device="cpu").active_bytes
    assert estimated == pytest.approx(_peak(model, settings), rel=tolerance, abs=_SMALL)
