"""The parts of a card, each from the run's facts to Markdown; a part about which nothing is known is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from hf_recipes.export.card.facts import CardFacts
from hf_recipes.export.card.markdown import code, number, plain, table
from hf_recipes.export.proofs.kept_update import thinned

_METHODS = {
    "full": "all weights trained",
    "partial": "some of the weights trained",
    "lora": "LoRA",
    "dora": "DoRA",
    "qlora": "QLoRA",
    "ia3": "(IA)³",
    "adapter": "bottleneck adapters",
    "prefix": "prefix tuning",
}
# Where a run was and how it was told to save is nobody's business but its owner's.
_OF_THE_MACHINE = {"output_dir", "num_processes", "resume_from_checkpoint", "logging_dir", "run_name", "disable_tqdm"}
_OF_THE_MACHINE |= {"report_to", "hub_model_id", "push_to_hub", "hub_strategy", "verify_checkpoints", "time_limit"}
_FORMS = {
    "adapter": "A {method} adapter for {base}: it is loaded on top of that model.",
    "merged": "{base}, fine-tuned ({method}){merged}: a whole model.",
    "quantised": "{base}, fine-tuned ({method}) and quantised: a whole model.",
    "gguf": "{base}, fine-tuned ({method}), as GGUF for llama.cpp and what is built on it.",
}


def summary(facts: CardFacts) -> str:
    """What it is, in a sentence or two."""
    dtype = facts.merge.get("dtype")
    what = _FORMS[facts.form].format(
        method=plain(_METHODS.get(facts.method, facts.method or "fine-tuning")),
        base=_base(facts),
        merged=f" and merged in {plain(dtype)}" if dtype else "",
    )
    domain = [plain(s.get("source")) for s in facts.sources if s.get("role") != "general"]
    trained = f" Trained on {', '.join(domain)}" if domain else ""
    steps = f" for {facts.steps:,} steps" if trained and facts.steps else ""
    return what + (f"{trained}{steps}." if trained else "")


def _base(facts: CardFacts) -> str:
    if facts.hub_base:
        return f"[{plain(facts.hub_base)}](https://huggingface.co/{facts.hub_base})"
    return code(facts.base) if facts.base else "its base model"


def evaluation(facts: CardFacts) -> str:
    """Base against tuned, and what the numbers were measured on."""
    rows = facts.evaluation.get("table")
    if not isinstance(rows, list) or not rows:
        return ""
    cells = [[plain(cell) for cell in row] for row in rows if isinstance(row, list) and len(row) == 3]
    return f"## Evaluation\n{_measured_on(facts)}\n\n{table(['', 'base', 'tuned'], cells)}\n{_forgetting(facts)}"


def _measured_on(facts: CardFacts) -> str:
    settings = _dict(facts.evaluation.get("settings"))
    tuned = _dict(_dict(facts.evaluation.get("tuned")).get("domain"))
    parts = [f"{number(tuned['rows'])} held-out rows" if "rows" in tuned else "Held-out rows"]
    parts += [f"{plain(settings['decoding'])} decoding"] if settings.get("decoding") else []
    parts += [f"computed in {plain(settings['dtype'])}"] if settings.get("dtype") else []
    return f"{', '.join(parts)}."


def _forgetting(facts: CardFacts) -> str:
    change = _dict(facts.evaluation.get("change")).get("forgetting")
    if not isinstance(change, (int, float)):
        return ""
    what = "rose: the model lost some of what it knew" if change > 0 else "did not rise: nothing was forgotten there"
    return f"\nThe loss on general text that was not trained on {what} ({change:+.3f} nats per token)."


def use(facts: CardFacts) -> str:
    """Code that loads this form."""
    if facts.form == "gguf":
        return "## Use\n```\nollama create tuned -f Modelfile && ollama run tuned\n```"
    base = facts.hub_base or "path/to/the/base"
    if facts.form == "adapter":
        load = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'base = AutoModelForCausalLM.from_pretrained("{base}", dtype="auto")',
            'model = PeftModel.from_pretrained(base, "this/repository")',
        ]
    else:
        load = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("this/repository", dtype="auto")',
        ]
    if facts.run.get("task") == "sequence_classification":
        load = [line.replace("AutoModelForCausalLM", "AutoModelForSequenceClassification") for line in load]
        ask = ['inputs = tokenizer("…", return_tensors="pt")', "print(model(**inputs).logits.softmax(-1))"]
    else:
        ask = [
            'messages = [{"role": "user", "content": "…"}]',
            "inputs = tokenizer.apply_chat_template("
            'messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)',
            "answer = model.generate(**inputs, max_new_tokens=256, do_sample=False)",
            'print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))',
        ]
    tokens = 'tokenizer = AutoTokenizer.from_pretrained("this/repository")'
    return "\n".join(["## Use", "```python", *load, tokens, "", *ask, "```"])


def intended_use(facts: CardFacts) -> str:
    """Left to the author, with what follows from the training."""
    licence = f"licence of the base ({plain(facts.licence)})" if facts.licence else "licence of the base"
    return (
        "## Intended use\n"
        "*For the author to fill in: what it is meant for, who checks its answers, what it must not be used for.*\n\n"
        "It was trained on the data below and on nothing else; elsewhere, expect the base model's "
        f"behaviour, limits and biases. The {licence} and those of the data apply."
    )


def training_data(facts: CardFacts) -> str:
    """What became of every row, by source, and the shares reached."""
    if not facts.sources:
        return ""
    licences = any(source.get("license") for source in facts.sources)
    rows = [
        [
            plain(source.get("source", "")),
            plain(source.get("role", "")),
            *([plain(source.get("license") or "not given")] if licences else []),
            *(number(source.get(key, 0)) for key in ("read", "kept", "train", "eval", "train_tokens")),
        ]
        for source in facts.sources
    ]
    words = ["source", "role", *(["licence"] if licences else [])]
    head = [*words, "rows read", "kept", "trained on", "held out", "tokens"]
    told = [_share(facts), _dropped(facts), _leakage(facts)]
    return "\n\n".join(["## Training data\n" + table(head, rows, right=len(words)), *(line for line in told if line)])


def _share(facts: CardFacts) -> str:
    share = _dict(facts.data.get("general_share"))
    by = _dict(share.get("by"))
    if not isinstance(share.get("reached"), (int, float)):
        return ""
    parts = [
        f"{value:.1%} of {plain(unit).replace(chr(92), '').replace('_', ' ')}"
        for unit, value in by.items()
        if isinstance(value, (int, float))
    ]
    return f"General text against forgetting: {', '.join(parts) or format(share['reached'], '.1%')}."


def _dropped(facts: CardFacts) -> str:
    reasons = [
        f"{number(_dict(entry).get('count', 0))} × {plain(reason)} ({plain(source.get('source', ''))})"
        for source in facts.sources
        for reason, entry in _dict(source.get("dropped")).items()
    ]
    return f"Left out: {'; '.join(reasons)}." if reasons else "No row was dropped."


def _leakage(facts: CardFacts) -> str:
    counts = {kind: _dict(entry).get("count", 0) for kind, entry in _dict(facts.data.get("leakage")).items()}
    if not counts:
        return ""
    found = [f"{number(count)} {plain(kind)}" for kind, count in counts.items() if count]
    return f"Held-out rows that also stand in the training data: {', '.join(found) or 'none'}."


def training(facts: CardFacts) -> str:
    """Method, size, and how it went."""
    run, recipe = facts.run, facts.recipe
    if not run:
        return ""
    pairs = {
        "base revision": _revision(facts),
        "base weights": _source(facts),
        "method": _METHODS.get(facts.method, facts.method),
        "trained parameters": _trained(run.get("trainable_parameters"), run.get("total_parameters")),
        "learning rate": recipe.get("learning_rate"),
        "epochs": None if _is_limited(recipe) else recipe.get("num_train_epochs"),
        "steps": facts.steps,
        "samples a step": run.get("global_batch_size"),
        "precision": _dict(run.get("precision")).get("dtype"),
        "hardware": _hardware(facts),
        "last training loss": facts.losses.get("loss"),
        "last held-out loss": facts.losses.get("eval_loss"),
        "alarms": facts.alarms,
    }
    rows = [[name, number(value)] for name, value in pairs.items() if value not in (None, "")]
    picture = "\n\n![Curves of the training](curves.png)" if facts.has_curves else ""
    return f"## Training\n{table(['', ''], rows)}{picture}"


def _is_limited(recipe: Mapping[str, Any]) -> bool:
    """Whether `max_steps` ends the training, not the epochs."""
    limit = recipe.get("max_steps")
    return isinstance(limit, int) and limit > 0


def _trained(trainable: Any, total: Any) -> str | None:
    if not (isinstance(trainable, int) and isinstance(total, int) and total > 0):
        return None
    return f"{trainable:,} of {total:,} ({trainable / total:.2%})"


def _source(facts: CardFacts) -> str | None:
    """Where the base's weights came from, if not from the Hub: a file of 4 bits makes another base of the same name."""
    source = _dict(facts.run.get("base_model")).get("source")
    return str(source) if source and source != "Hugging Face Hub" else None


def _revision(facts: CardFacts) -> Any:
    base = _dict(facts.run.get("base_model"))
    return base.get("revision") or base.get("source")


def _hardware(facts: CardFacts) -> str:
    hardware = _dict(facts.run.get("hardware"))
    name = hardware.get("name") or hardware.get("device") or ""
    processes = facts.run.get("world_size")
    return f"{name}, {processes} processes" if isinstance(processes, int) and processes > 1 else str(name)


def merge(facts: CardFacts) -> str:
    """How the weights came about, and what was proven of them."""
    report = facts.merge
    if facts.form == "adapter" or not report:
        return ""
    proof = _dict(report.get("proof"))
    lines = [
        f"{number(report.get('tensors_total', 0))} tensors in {plain(report.get('dtype', ''))}; "
        f"{number(report.get('tensors_changed', 0))} changed by {number(report.get('adapter_tensors_consumed', 0))} "
        "adapter tensors, all of them used. Products and sums in fp32, rounded once."
    ]
    if values := report.get("base_values"):
        lines.append(f"Values of the base: {plain(values)}.")
    if tensors := _dict(proof.get("tensors")):
        error = tensors.get("largest_error")
        exact = "the same to the bit" if error == 0 else f"largest error {number(error)} of what rounding allows"
        lines.append(
            f"Read again after writing: {number(tensors.get('copied', 0))} tensors as in the base to the byte, "
            f"{number(tensors.get('recomputed', 0))} recomputed, {exact}."
        )
        kept = tensors.get("update_kept")
        if isinstance(kept, (int, float)) and (told := thinned(kept, str(report.get("dtype")))):
            lines.append(f"R{told[1:]}.")
    if logits := _dict(proof.get("logits")):
        lines.append(
            f"Against the live adapter on {number(logits.get('positions'))} positions: mean KL "
            f"{number(logits.get('kl_mean'))}, same top token {_percent(logits.get('top1_agreement'))}, "
            f"{number(logits.get('same_generations'))} of {number(logits.get('prompts'))} greedy answers the same."
        )
    return "## Merge\n" + "\n".join(f"- {line}" for line in lines)


def forms(facts: CardFacts) -> str:
    """The exported forms side by side, with whatever was measured."""
    rows = [{key: value for key, value in form.items() if not isinstance(value, (dict, list))} for form in facts.forms]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if not keys:
        return ""
    cells = [[number(row.get(key, "")) for key in keys] for row in rows]
    return "## Forms\n" + table([plain(key).replace("\\_", " ") for key in keys], cells)


def recipe(facts: CardFacts) -> str:
    """Every key that made the training what it was, as YAML."""
    kept = {key: value for key, value in facts.recipe.items() if key not in _OF_THE_MACHINE and value is not None}
    if not kept:
        return ""
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=100).strip().replace("```", "'''")
    return f"## Recipe\n<details><summary>all keys</summary>\n\n```yaml\n{text}\n```\n\n</details>"


def versions(facts: CardFacts) -> str:
    """What it was made with."""
    found = _dict(facts.run.get("versions"))
    made = ", ".join(f"{plain(name)} {plain(version)}" for name, version in found.items() if version)
    return f"Made with {made}." if made else ""


def _percent(value: Any) -> str:
    return f"{value:.2%}" if isinstance(value, (int, float)) else number(value)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
