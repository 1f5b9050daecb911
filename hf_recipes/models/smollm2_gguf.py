"""A Llama GGUF of the SmolLM family turned into a bf16 safetensors model, tokenizer and chat template included.

transformers reads GGUF too; for this one file it takes about a minute, since it parses the vocabulary three times
and builds its name map once a module, and it drops the digit splitting of the tokenizer. Reading once takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"^blk\.(\d+)\.(\w+)$")
_CONTROL_TOKEN = 3  # token types of the GGUF specification: 1 normal, 3 control


def convert_gguf(gguf_file: Path, directory: Path) -> None:
    """Dequantise `gguf_file` into a new `directory`: config, generation config, weights, tokenizer.

    The file must hold a Llama with tied embeddings and a byte-level BPE with ``pre = smollm``; another one fails an
    assertion, since only files known by their hash come here.
    """
    from gguf import GGUFReader
    from transformers import GenerationConfig

    reader = GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama", fields["general.architecture"]
    directory.mkdir(parents=True)
    config = _config(fields)
    config.save_pretrained(directory)
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ids).save_pretrained(directory)
    _save_weights(reader.tensors, config, directory / "model.safetensors")
    _tokenizer(fields).save_pretrained(directory)


def _config(fields: Mapping[str, Any]) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        # Stored in float32, as 9.999999747e-06: six digits give back what was meant.
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype="bfloat16",
    )


def _save_weights(tensors: Sequence[Any], config: Any, file: Path) -> None:
    """Dequantise every tensor to float32, round it once to bf16 and write all in safetensors."""
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for tensor in tensors:
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        kind = tensor.name.removesuffix(".weight").rpartition(".")[2]
        if kind in heads:
            weight = unpermute_rotary(weight, heads[kind])
        state[transformers_name(tensor.name)] = weight.to(torch.bfloat16).contiguous()
    assert "lm_head.weight" not in state, "the output matrix is tied"
    save_file(state, file, metadata={"format": "pt"})


def transformers_name(gguf_name: str) -> str:
    """``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``; an unknown name raises `KeyError`."""
    stem = gguf_name.removesuffix(".weight")
    if match := _LAYER.match(stem):
        return f"model.layers.{match.group(1)}.{_LAYER_NAMES[match.group(2)]}.weight"
    return f"{_OUTER_NAMES[stem]}.weight"


def unpermute_rotary(weight: Any, heads: int) -> Any:
    """Give the rows of a query or key matrix ``(heads * d, hidden)`` back transformers' order.

    GGUF keeps each head's rotary pairs side by side (0, d/2, 1, d/2 + 1, …); transformers keeps the halves apart.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(fields: Mapping[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    assert fields["tokenizer.ggml.pre"] == "smollm", fields["tokenizer.ggml.pre"]
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in fields["tokenizer.ggml.merges"])]
    raw = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    # What `pre = smollm` stands for: digits one by one, then GPT-2's splitting into bytes.
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    raw.add_special_tokens([AddedToken(token, normalized=False) for token, kind in kinds if kind == _CONTROL_TOKEN])
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    special = {f"{role}_token": tokens[fields[f"tokenizer.ggml.{name}_token_id"]] for role, name in roles.items()}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **special,
    )
    fast.chat_template = fields["tokenizer.chat_template"]
    return fast
