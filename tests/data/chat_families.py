"""Chat templates of eleven families, written out by hand in the shapes their models use, and small tokenizers for them.

Each template stands for what makes masks hard in its family: headers, trimming, a space before the answer, a token that
only the end of the conversation has, reasoning dropped from earlier turns, system text that moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CORPUS = [
    "Hello! How can I help you today? The capital of France is Paris. 2 + 2 = 4, and 3 x 3 = 9.",
    'user assistant system tool model {"name": "get_weather", "arguments": {"city": "Oslo"}} <think> hm </think>',
    "Write a line of code: def f(x):\n    return x + 1\n\nThank you, that is all. Sure, here it is:",
]


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and how it ends an assistant turn."""

    template: str
    special_tokens: tuple[str, ...]
    eos: str
    end_of_turn: str
    has_system: bool = True
    drops_reasoning: bool = False


CHATML = """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

CHATML_MARKED = """{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- generation %}{{ m['content'] }}{% endgeneration %}{{ '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}
{%- set system = messages[0]['content'] %}
{%- else %}{% set rest = messages %}{% set system = '' %}{% endif %}
{%- for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}
{%- if loop.index0 == 0 and system %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}
{%- else %}{% set content = m['content'] %}{% endif %}
{%- if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{{ bos_token }}{% for m in messages %}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{- raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}
{{- '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

# The system text goes into the last user turn, so that the beginning of a conversation changes as it grows.
MISTRAL = """{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
{%- set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}
{%- for m in rest %}{% if m['role'] == 'user' %}
{%- if system and (loop.last or loop.index0 == rest | length - 2) %}
{{- '[INST] ' + system + '\\n\\n' + m['content'] + '[/INST]' }}
{%- else %}{{ '[INST] ' + m['content'] + '[/INST]' }}{% endif %}
{%- elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"""

# Ends a finished conversation, and only that, with the end-of-sequence token.
PHI3 = """{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

# Keeps the reasoning of answers after the last question only, and writes an empty one where there is none.
QWEN3 = """{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{% if m['role'] == 'assistant' %}{% set content = m['content'] %}{% set thought = '' %}
{%- if '</think>' in content %}{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{%- if loop.index0 > ns.last %}{{ '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content }}
{%- else %}{{ '<|im_start|>assistant\\n' + content }}{% endif %}{{ '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Writes a system turn of its own when there is none.
SMOLLM2 = """{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful AI assistant<|im_end|>\\n' }}{% endif %}
{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Its tokens are made from the roles, with a separator of its own between role and words and nothing between turns.
PHI4 = """{% for m in messages %}
{{- '<|im_start|>' + m['role'] + '<|im_sep|>' + m['content'] + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""

# Tools stand in front of the last question only; calls and results have tokens of their own; no generation prompt.
MISTRAL_TOOLS = """{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
{%- set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{%- set ns = namespace(last=-1) %}{% for m in rest %}{% if m['role'] == 'user' %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ bos_token }}
{%- for m in rest %}{% if m['role'] == 'user' %}{% if loop.index0 == ns.last and tools %}
{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST] ' }}{% if loop.index0 == ns.last and system %}{{ system + '\\n\\n' }}{% endif %}
{{- m['content'] + '[/INST]' }}
{%- elif m['tool_calls'] is defined and m['tool_calls'] %}{{ '[TOOL_CALLS] [' }}
{%- for c in m['tool_calls'] %}{{ c['function'] | tojson }}{{ ', ' if not loop.last }}{% endfor %}{{ ']' + eos_token }}
{%- elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}
{%- elif m['role'] == 'tool' %}{{ '[TOOL_RESULTS] ' + m['content'] + '[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user, assistant and tool roles are supported') }}{% endif %}{% endfor %}"""

MISTRAL_NAMES = ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS")
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
FAMILIES: dict[str, Family] = {
    "chatml": Family(CHATML, CHATML_TOKENS, "<|endoftext|>", "<|im_end|>"),
    "chatml_marked": Family(CHATML_MARKED, CHATML_TOKENS, "<|im_end|>", "<|im_end|>"),
    "llama2": Family(LLAMA2, ("<s>", "</s>"), "</s>", "</s>"),
    "llama3": Family(
        LLAMA3,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|end_of_text|>",
        "<|eot_id|>",
    ),
    "gemma": Family(
        GEMMA,
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        "<end_of_turn>",
        has_system=False,
    ),
    "mistral": Family(MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "</s>"),
    "mistral_tools": Family(
        MISTRAL_TOOLS,
        ("<s>", "</s>", *(f"[{bar}{name}]" for name in MISTRAL_NAMES for bar in ("", "/")), "[TOOL_CALLS]"),
        "</s>",
        "</s>",
    ),
    "smollm2": Family(SMOLLM2, CHATML_TOKENS, "<|im_end|>", "<|im_end|>"),
    "phi4": Family(PHI4, (*CHATML_TOKENS, "<|im_sep|>"), "<|endoftext|>", "<|im_end|>"),
    "phi3": Family(
        PHI3, ("<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"), "<|endoftext|>", "<|end|>"
    ),
    "qwen3": Family(QWEN3, CHATML_TOKENS, "<|im_end|>", "<|im_end|>", drops_reasoning=True),
}


def make_tokenizer(
    template: str | None,
    special_tokens: tuple[str, ...],
    eos: str,
    *,
    metaspace: bool = False,
    trim_offsets: bool = True,
) -> Any:
    """A byte-level BPE (or, as in Llama-2, one that turns spaces into part of the next word) with given tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token="<unk>") if metaspace else models.BPE())
    if metaspace:
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        raw.decoder = decoders.Metaspace(prepend_scheme="first")
        alphabet = sorted({letter for text in CORPUS for letter in text})
    else:
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = [*special_tokens, *(["<unk>"] if metaspace else [])]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=special_tokens[0], eos_token=eos, pad_token=eos)
    fast.chat_template = template
    return fast


def family_tokenizer(name: str, **options: Any) -> Any:
    """The tokenizer of a family of `FAMILIES`."""
    family = FAMILIES[name]
    return make_tokenizer(family.template, family.special_tokens, family.eos, **options)
