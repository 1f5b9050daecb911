"""Whether the server will know when an answer ends, and by which defaults it samples (case M9: “vLLM never stops”)."""

from __future__ import annotations

from typing import Any

from hf_recipes.export.serving.facts import Finding, fatal, ok, vllm_facts, warning
from hf_recipes.export.serving.files import TEMPLATE_NAME, Served

_ANSWER = "hf-recipes-answer"
_MESSAGES = [{"role": "user", "content": "hf-recipes-question"}, {"role": "assistant", "content": _ANSWER}]


def check_stopping(served: Served) -> list[Finding]:
    """Tokenizer, chat template, end tokens and sampling defaults of a model that answers."""
    if not served.has_tokenizer:
        return [fatal("tokenizer", "No tokenizer is here: copy that of the training into the directory.")]
    if served.template is None:
        findings = [
            warning(
                "chat template",
                f"There is no chat template, so /v1/chat/completions is refused: add {TEMPLATE_NAME} of the training "
                "or give --chat-template.",
            )
        ]
    else:
        findings = [ok("chat template", "The chat template is here."), *_check_end(served)]
    return findings + check_sampling(served)


def stop_ids(served: Served) -> set[int]:
    """The ids at which vLLM stops by itself: the tokenizer's end token and those of generation_config.json
    (vllm/sampling_params.py, update_from_generation_config), or of config.json where there is none
    (vllm/transformers_utils/config.py, try_get_generation_config)."""
    given = (served.generation or served.config).get("eos_token_id")
    ids = {given} if isinstance(given, int) else set(given or ())
    return ids | ({served.end_token[1]} if served.end_token else set())


def end_of_turn(served: Served) -> tuple[str, int] | None:
    """The special token that the template writes right after an answer, or None where it writes none or cannot be
    rendered."""
    rendered = _rendered(served)
    if rendered is None or _ANSWER not in rendered:
        return None
    after = rendered.rpartition(_ANSWER)[2].lstrip()
    names = [name for name in served.tokens if name and after.startswith(name)]
    name = max(names, key=len, default=None)
    return (name, served.tokens[name]) if name is not None else None


def _rendered(served: Served) -> str | None:
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    special = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in served.tokenizer_config.items()
        if key.endswith("_token")
    }
    try:
        texts, _ = render_jinja_template(conversations=[_MESSAGES], chat_template=served.template, **special)
    except (TemplateError, TypeError, ValueError, ImportError):
        return None
    return texts[0]


def _check_end(served: Served) -> list[Finding]:
    end = end_of_turn(served)
    stops = ", ".join(map(str, sorted(stop_ids(served))))
    if end is None:
        return [
            warning("end of turn", "The token that ends an answer cannot be told from the template: try one answer.")
        ]
    name, token = end
    if token in stop_ids(served):
        return [ok("end of turn", f"Answers end with {name} ({token}), at which the server stops.")]
    return [
        warning(
            "end of turn",
            f"The template ends answers with {name} ({token}), but the server stops at {stops or 'nothing'} only: add "
            f"{token} to eos_token_id in generation_config.json.",
        )
    ]


def check_sampling(served: Served) -> list[Finding]:
    """vllm/config/model.py (get_diff_sampling_param): these become the server's defaults for every request."""
    neutral: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0}
    given = {
        key: served.generation[key]
        for key in vllm_facts()["server_defaults"]
        if served.generation.get(key) not in (None, neutral.get(key))
    }
    if not given:
        return []
    settings = ", ".join(f"{key} {value}" for key, value in given.items())
    return [
        warning(
            "sampling",
            f"generation_config.json sets {settings}, which become the server's defaults: send your own with each "
            "request (temperature 0 for what the evaluation measured), or start it with --generation-config vllm.",
        )
    ]
