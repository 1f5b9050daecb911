"""What is looked at of a cell: import as `from examined import examine`."""

from __future__ import annotations

from sameness import Cell, apart, curves, events_of

TOLERANCE = 1e-3  # of losses and gradient norms against one process, in fp32
SAME = 1e-4  # of saved values, and of a resumed run against the unbroken one
PREEMPTED = 75

METHODS = ("full", "lora", "qlora")
FIRST = ("ddp", "fsdp", "zero2", "zero3")
OTHERS = ("zero1", "fsdp_offload", "zero2_offload", "zero3_offload", "zero3_offload_all")


def cells():
    """All that are looked at, in order of worth."""
    chosen = [Cell(strategy, method) for method in METHODS for strategy in FIRST]
    chosen += [Cell("tp", "full"), Cell("tp", "lora"), Cell("tp", "full", ranks=4, tied=False, tensor=2)]
    chosen += [Cell("hsdp", method, ranks=4, nodes=2) for method in METHODS]
    chosen += [Cell(strategy, method) for strategy in OTHERS for method in METHODS]
    chosen += [Cell(strategy, "full", tied=False) for strategy in FIRST]
    chosen += [Cell(strategy, method, ranks=4) for method in ("lora", "full") for strategy in FIRST]
    return chosen


def examine(place, cell, *, resumes=True):
    """Run a cell and compare it with one process; a row of plain data, with `why` where something is not as it should
    be."""
    row = {"strategy": cell.strategy, "method": cell.method, "ranks": cell.ranks, "nodes": cell.nodes}
    row |= {"tied": cell.tied, "tensor": cell.tensor, "why": []}
    codes = place.run(cell, cell.name)
    if any(codes):
        return row | {"outcome": "failed", "why": [last_words(place.log(cell.name), codes)]}
    whole, one = place.folder / cell.name, place.alone(cell.method, cell.tied)
    _compare(place, row, whole, one)
    if resumes:
        _break_off(place, cell, row, whole)
    row["outcome"] = "differs" if row["why"] else "same"
    return row


def last_words(log, codes):
    lines = [line for line in log.read_text().splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("hf-recipes: ")] or lines[-1:]
    return f"exit {codes}: {said[0] if said else 'nothing was said'}"[:600]


def _compare(place, row, whole, one):
    found, expected = curves(whole), curves(one)
    for name in found:
        row[name] = apart(found[name], expected[name])
        if row[name]["max"] > TOLERANCE:
            row["why"].append(f"{name} differs by {row[name]['max']:.2g}")
    row["learned"] = expected["loss"][1] - min(expected["loss"].values())
    values = place.ranks.call("sameness:result_apart", str(whole), str(one))
    row["values"] = values
    if not values["same_shapes"] or values["max"] > SAME:
        row["why"].append(f"saved values differ: {values}")
    facts, known = place.facts(whole), place.facts(one)
    row["verified"] = not any(facts["problems"].values())
    row["same_answers"] = facts["answers"] == known["answers"]
    if not row["verified"]:
        row["why"].append(f"the result does not verify: {facts['problems']}")
    if not row["same_answers"]:
        row["why"].append("the merged model answers otherwise")
    row["checkpoints"] = sorted(
        {event["level"] for event in events_of(whole) if event["kind"] == "verify" and event["ok"]}
    )
    if not row["checkpoints"]:
        row["why"].append("no checkpoint was verified")


def _break_off(place, cell, row, whole):
    """SIGTERM, go on, SIGKILL of everything, go on to the end: the curves of the unbroken run."""
    name, third = f"{cell.name}-broken", place.steps // 3
    auto = ("--resume_from_checkpoint", "auto")
    stopped = place.run(cell, name, hooks=[["run_hooks:stopped", third - 2]])
    if PREEMPTED not in stopped:
        row["why"].append(f"SIGTERM: {last_words(place.log(name), stopped)}")
        return
    killed = place.run(cell, name, *auto, hooks=[["run_hooks:killed", 2 * third - 3]])
    if not all(code < 0 for code in killed):
        row["why"].append(f"resumed after SIGTERM: {last_words(place.log(name), killed)}")
        return
    codes = place.run(cell, name, *auto)
    if any(codes):
        row["why"].append(f"resumed after SIGKILL: {last_words(place.log(name), codes)}")
        return
    broken = place.folder / name
    begins = [event["resumed_from"] for event in events_of(broken) if event["kind"] == "begin" and event["rank"] == 0]
    row["resumed_from"] = begins
    found, expected = curves(broken), curves(whole)
    row["resumed"] = {key: apart(found[key], expected[key])["max"] for key in found}
    row["resumed"]["values"] = place.ranks.call("sameness:result_apart", str(broken), str(whole))["max"]
    for key, value in row["resumed"].items():
        if value > SAME:
            row["why"].append(f"resumed: {key} differs by {value:.2g}")
    if None in begins[1:] or len(begins) != 3:
        row["why"].append(f"resumed from {begins}")
