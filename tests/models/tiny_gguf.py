"""A GGUF file small enough for tests; import as `from tiny_gguf import make_tiny_gguf`."""

from __future__ import annotations

import json
from pathlib import Path


def make_tiny_gguf(path: Path, tokenizer) -> bytes:
    """A random two-layer SmolLM-like GGUF, its matrices stored as float16."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (("block_count", 2), ("context_length", 256), ("embedding_length", 32)):
        getattr(writer, f"add_{name}")(value)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token.startswith("<|") else 1 for token, _ in vocabulary])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    for role, number in (("unk", 0), ("bos", 1), ("eos", 2), ("pad", 2)):
        getattr(writer, f"add_{role}_token_id")(number)
    writer.add_chat_template(tokenizer.chat_template)
    random = np.random.default_rng(0)
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64), "attn_norm": (32,), "ffn_norm": (32,)}
    layers = {f"blk.{layer}.{name}": shape for layer in range(2) for name, shape in shapes.items()}
    for name, shape in {"token_embd": (len(vocabulary), 32), "output_norm": (32,), **layers}.items():
        weight = random.normal(0, 0.2, shape).astype(np.float16 if len(shape) == 2 else np.float32)
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()
