"""Whether the tensors are those that config.json describes, for the many models laid out as Llama is; from headers
alone. Loading by transformers (level "reload") is exact and knows every layout."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_recipes.checkpoints.verification.findings import Findings, some
from hf_recipes.checkpoints.verification.scan_facts import FileScan, TensorFacts

CONFIG_NAME = "config.json"
# Model types whose every layer has the names and shapes below; a test saves one of each and checks it.
LLAMA_LIKE = frozenset(
    (  # noqa: SIM905 - a line for each would fill the screen
        "arcee cohere cohere2 cwm ernie4_5 exaone4 gemma gemma2 gemma3_text glm glm4 glm4_moe granite "
        "hunyuan_v1_dense hyperclovax internlm3 llama ministral ministral3 mistral mixtral nemotron olmo2 "
        "olmo3 olmoe phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 stablelm starcoder2"
    ).split()
)
_PARTS = re.compile(r"^(?P<prefix>.*?)layers\.(?P<layer>\d+)\.(?P<rest>.+)$")
_EXPERT = re.compile(r"(?<=\.experts\.)(\d+)(?=\.)")
_MODULE = re.compile(r"^.*?(_proj|norm|\.gate|\.w[123])(?=\.)")
_SHARDS_OF_MODEL = re.compile(r"^model(-\d{5}-of-\d{5})?\.safetensors$")
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Sizes:
    """What config.json says of a language model; None where it says nothing."""

    hidden: int | None
    vocabulary: int | None
    layers: int | None
    query: int | None
    key: int | None
    inner: int | None
    experts: int | None
    expert_inner: int | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Sizes:
        """Read them under the names that the models of `LLAMA_LIKE` give them."""

        def number(*keys: str) -> int | None:
            return next((config[key] for key in keys if type(config.get(key)) is int), None)

        hidden, heads = number("hidden_size"), number("num_attention_heads")
        head = number("head_dim") or (hidden // heads if hidden and heads else None)
        groups = number("num_key_value_heads") or heads
        return cls(
            hidden=hidden,
            vocabulary=number("vocab_size"),
            layers=number("num_hidden_layers"),
            query=heads * head if heads and head else None,
            key=groups * head if groups and head else None,
            inner=number("intermediate_size"),
            experts=number("num_local_experts", "num_experts", "n_routed_experts"),
            expert_inner=number("moe_intermediate_size", "intermediate_size"),
        )


_MOST_MISSING = 1000
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_Size = int | None
_LAYER_SHAPES: tuple[tuple[str, Any], ...] = (
    (r"self_attn\.q_proj\.weight", lambda s: (s.query, s.hidden)),
    (r"self_attn\.q_proj\.bias", lambda s: (s.query,)),
    (r"self_attn\.[kv]_proj\.weight", lambda s: (s.key, s.hidden)),
    (r"self_attn\.[kv]_proj\.bias", lambda s: (s.key,)),
    (r"self_attn\.o_proj\.weight", lambda s: (s.hidden, s.query)),
    (r"self_attn\.qkv_proj\.weight", lambda s: (s.query and s.key and s.query + 2 * s.key, s.hidden)),
    (r"mlp\.(gate|up)_proj\.weight", lambda s: (s.inner, s.hidden)),
    (r"mlp\.gate_up_proj\.weight", lambda s: (s.inner and 2 * s.inner, s.hidden)),
    (r"mlp\.down_proj\.weight", lambda s: (s.hidden, s.inner)),
    (r"(mlp|block_sparse_moe)\.experts\.\d+\.(gate_proj|up_proj|w1|w3)\.weight", lambda s: (s.expert_inner, s.hidden)),
    (r"(mlp|block_sparse_moe)\.experts\.\d+\.(down_proj|w2)\.weight", lambda s: (s.hidden, s.expert_inner)),
    (r"(mlp|block_sparse_moe)\.gate\.weight", lambda s: (s.experts, s.hidden)),
    (r"\w*layernorm\.weight", lambda s: (s.hidden,)),
)
_LAYER_RULES = tuple((re.compile(f"^{pattern}$"), shape) for pattern, shape in _LAYER_SHAPES)


def check_config(prefix: str, inside: Mapping[str, FileScan], findings: Findings) -> None:
    """Compare the model in one folder with its config.json, where both are there and the layout is known."""
    config = inside[CONFIG_NAME].content if CONFIG_NAME in inside else None
    files = {name: scan.tensors for name, scan in inside.items() if _SHARDS_OF_MODEL.match(name)}
    tensors = {tensor: facts for held in files.values() for tensor, facts in (held or {}).items()}
    if not isinstance(config, dict):
        if CONFIG_NAME in inside and not inside[CONFIG_NAME].damage and not inside[CONFIG_NAME].note:
            findings.problem(f"{prefix}{CONFIG_NAME}", "is not a JSON object")
        return
    if not tensors or None in files.values() or not isinstance(config.get("model_type"), str):
        return
    _note_dtype(prefix, config, tensors, findings)
    text = config.get("text_config")
    part = text if isinstance(text, dict) else config
    if part.get("model_type") not in LLAMA_LIKE:
        kind = part.get("model_type") or config["model_type"]
        findings.note(f"{prefix}{CONFIG_NAME}: the layout of '{kind}' is judged by --level reload only.")
        return
    for key, value in _odd_sizes(part):
        findings.problem(
            f"{prefix}{CONFIG_NAME}", f"{key} is {value!r}, not a whole number above 0: it cannot be loaded"
        )
    tensors = _language_model(tensors) if part is text else tensors
    where = {tensor: f"{prefix}{file}" for file, held in files.items() for tensor in held or ()}
    for tensor, what in _told_once([*_wrong_shapes(Sizes.of(part), tensors), *_missing(config, part, tensors)]):
        findings.problem(where.get(tensor, f"{prefix}{CONFIG_NAME}"), what, tensor)


def _odd_sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Sizes that no model of these kinds could have."""
    for key in _SIZES:
        value = config.get(key, 1)
        if type(value) is not int or value < 1:
            yield key, value


def _told_once(problems: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What is wrong in the same way with the same tensor of many layers or experts: the first, and how many more."""
    alike: dict[tuple[str, str], list[str]] = {}
    for tensor, what in problems:
        alike.setdefault((_NUMBER.sub("*", tensor), what), []).append(tensor)
    for (_, what), names in alike.items():
        yield names[0], f"{what}; so it is with {len(names) - 1} more like it" if len(names) > 1 else what


def _language_model(tensors: Mapping[str, TensorFacts]) -> dict[str, TensorFacts]:
    """In a model of several parts, the one whose sizes `text_config` gives."""
    return {name: facts for name, facts in tensors.items() if "language_model" in name or name.startswith("lm_head")}


def _note_dtype(prefix: str, config: Mapping[str, Any], tensors: Mapping[str, TensorFacts], findings: Findings) -> None:
    stated = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    held = Counter(_FLOATS[facts.dtype] for facts in tensors.values() if facts.dtype in _FLOATS)
    if stated in _FLOATS.values() and held and stated not in held:
        most = held.most_common(1)[0][0]
        findings.note(f"{prefix}{CONFIG_NAME} says {stated}, the tensors are {most}.")


def _wrong_shapes(sizes: Sizes, tensors: Mapping[str, TensorFacts]) -> Iterator[tuple[str, str]]:
    for name, facts in tensors.items():
        if facts.dtype not in _FLOATS and not facts.dtype.startswith("F8"):
            continue  # packed: the shape is not the matrix's
        shape = _expected(name, sizes)
        if shape is None or None in shape or not all(facts.shape):  # without values: told elsewhere
            continue
        if facts.shape != shape:
            yield name, f"has shape {list(facts.shape)}, {CONFIG_NAME} asks for {list(shape)}: it cannot be loaded"


def _expected(name: str, sizes: Sizes) -> tuple[_Size, ...] | None:
    match = _PARTS.match(name)
    if match is None:
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            return (sizes.vocabulary, sizes.hidden)
        return (sizes.hidden,) if name.endswith("norm.weight") else None
    return next((shape(sizes) for rule, shape in _LAYER_RULES if rule.match(match["rest"])), None)


def _missing(
    config: Mapping[str, Any], part: Mapping[str, Any], tensors: Mapping[str, TensorFacts]
) -> Iterator[tuple[str, str]]:
    for name in ("embed_tokens.weight", "norm.weight"):
        if not any(held.endswith(name) and not _PARTS.match(held) for held in tensors):
            yield name, "is missing: every model of this type has it"
    kinds = config.get("architectures")
    makes_text = isinstance(kinds, list) and any(str(kind).endswith(("CausalLM", "Generation")) for kind in kinds)
    tied = part.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if makes_text and tied is False and not any(name.endswith("lm_head.weight") for name in tensors):
        yield "lm_head.weight", f"is missing, and {CONFIG_NAME} does not tie it to the embedding: it would be random"
    yield from _missing_in_layers(Sizes.of(part), bool(part.get("num_nextn_predict_layers")), tensors)


def _missing_in_layers(
    sizes: Sizes, more_layers: bool, tensors: Mapping[str, TensorFacts]
) -> Iterator[tuple[str, str]]:
    prefix, layers = _by_layer(tensors)
    if sizes.layers is not None and sizes.layers > len(layers) + _MOST_MISSING:  # not to be told one by one
        yield f"{prefix}layers", f"are {len(layers)}, and {CONFIG_NAME} has {sizes.layers:.6g}"
        return
    expected = set(range(sizes.layers)) if sizes.layers is not None else set(layers)
    for number in sorted(expected - set(layers)):
        yield f"{prefix}layers.{number}", f"is missing as a whole: {CONFIG_NAME} has {sizes.layers} layers"
    surplus = sorted(set(layers) - expected)
    if surplus and not more_layers:
        yield (
            f"{prefix}layers.{surplus[0]}",
            f"is one of {len(surplus)} layers beyond the {sizes.layers} of {CONFIG_NAME}",
        )
    for number, lacking in _unlike_the_others({n: layers[n] for n in sorted(expected & set(layers))}, sizes):
        yield f"{prefix}layers.{number}.{lacking[0]}", _lack(lacking)


def _lack(lacking: list[str]) -> str:
    others = f", nor are {some(lacking[1:])}" if len(lacking) > 1 else ""
    return f"is missing, which other layers have{others}"


def _by_layer(tensors: Mapping[str, TensorFacts]) -> tuple[str, dict[int, set[str]]]:
    """The prefix of the layers and, for each, the modules that hold something."""
    layers: dict[int, set[str]] = {}
    prefix = ""
    for name in tensors:
        if match := _PARTS.match(name):
            prefix = match["prefix"]
            module = _MODULE.match(match["rest"])
            # Quantised modules hold other tensors than plain ones; that there is something is what counts.
            layers.setdefault(int(match["layer"]), set()).add(module[0] if module else match["rest"])
    return prefix, layers


def _unlike_the_others(layers: Mapping[int, set[str]], sizes: Sizes) -> Iterator[tuple[int, list[str]]]:
    """Layers that lack a module which others have; dense layers and those of experts are compared among themselves."""
    for routed in (False, True):
        alike = {number: held for number, held in layers.items() if any(".experts." in m for m in held) == routed}
        common = {_EXPERT.sub("*", module) for held in alike.values() for module in held}
        for number, held in alike.items():
            wanted = {full for module in common for full in _each_expert(module, sizes.experts, held)}
            if lacking := sorted(wanted - held):
                yield number, lacking


def _each_expert(module: str, experts: int | None, held: set[str]) -> list[str]:
    if "*" not in module:
        return [module]
    numbers = [int(match[0]) for name in held if (match := _EXPERT.search(name))]
    # A damaged name may hold no number, or a huge one: among so many the first one missing is found all the same.
    count = min(experts, len(held) + 1) if experts is not None else 1 + min(max(numbers, default=0), len(held))
    return [module.replace("*", str(number)) for number in range(count)]
