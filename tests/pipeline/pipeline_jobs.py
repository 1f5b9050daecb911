"""What the ranks of `forked_ranks` run: a recipe from start to end."""

from __future__ import annotations

import json


def train_recipe(directory, recipe, *keys):
    """Train; the exit code and the sentence of a run that was refused or stopped, 0 for one that ended well."""
    import os

    from hf_recipes.core.errors import CheckFailed, Preempted, UserError
    from hf_recipes.core.log import show_on_console
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training import environment
    from hf_recipes.training.run import train

    environment.threads_per_rank = lambda cores, local_ranks: 1
    show_on_console(int(os.environ["RANK"]))
    try:
        train(load_recipe(recipe, ["--output_dir", str(directory), *keys]))
    except (UserError, CheckFailed, Preempted) as error:
        return [error.exit_code, str(error)]
    return [0, ""]


def logs_of(run, steps, *names):
    """Step → what was logged of `names`, for steps 1 to `steps`, of the newest attempt that logged the step."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    logs = [event for event in events if event["kind"] == "log" and "loss" in event]
    return {event["step"]: tuple(event[name] for name in names) for event in logs if event["step"] <= steps}


def train_and_look(directory, recipe, *keys):
    """Train, then hold the stages in memory against the result on disk: the largest difference of a tensor, and the
    losses of both on rows that were not trained on."""
    import torch

    from hf_recipes.training import pipelined

    kept = []
    save = pipelined._save_result
    pipelined._save_result = lambda loop, *rest: (kept.append(loop), save(loop, *rest))
    ended = train_recipe(directory, recipe, *keys)
    if ended[0]:
        return {"ended": ended}
    (loop,) = kept
    rows = loop.engine.step_rows
    ids = torch.randint(3, 200, (rows, 24), generator=torch.Generator().manual_seed(5))
    loop.built.stage.eval()
    live = loop.engine.evaluate({"input_ids": ids, "labels": ids})
    part = loop.built.stage.part
    result = {"ended": ended, "apart": _apart(loop, directory), "last": part.last}
    if part.last:
        result["live"] = float(live) / (rows * 23)
        result["loaded"] = _loaded_loss(directory, ids)
    return result


def _apart(loop, directory):
    """Of what this rank holds, the largest difference from the saved tensors of the same names."""
    from safetensors.torch import load_file

    from hf_recipes.pipeline.saving import whole
    from hf_recipes.pipeline.stage_model import adapter_parameters

    folder, model = directory / "model", loop.built.stage.model
    held = dict(model.named_parameters())
    if not folder.is_dir():
        folder, held = directory / "adapter", dict(adapter_parameters(model))
    saved = {}
    for file in folder.glob("*.safetensors"):
        saved.update(load_file(file))
    assert held
    pairs = {name: (whole(each), saved.get(name)) for name, each in held.items()}
    if "lm_head.weight" in pairs and pairs["lm_head.weight"][1] is None:
        pairs["lm_head.weight"] = (pairs["lm_head.weight"][0], saved["model.embed_tokens.weight"])
    return max(float((live - stored).abs().max()) for live, stored in pairs.values())


def _loaded_loss(directory, ids):
    import torch
    from transformers import AutoModelForCausalLM

    if (directory / "model").is_dir():
        model = AutoModelForCausalLM.from_pretrained(directory / "model", dtype=torch.float32)
    else:
        from peft import AutoPeftModelForCausalLM

        model = AutoPeftModelForCausalLM.from_pretrained(directory / "adapter", dtype=torch.float32)
    with torch.no_grad():
        return float(model.eval()(input_ids=ids, labels=ids).loss)
