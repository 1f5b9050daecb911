"""Plans made by hand for the tests of the pictures."""

from __future__ import annotations

from dataclasses import replace

from hf_recipes.plan.pictures.data import DeviceRow, LengthGrid, MemoryBar, PlanView

GIB = 2**30
MIB = 2**20
LIMIT = 23.5 * GIB
EVIL = "<b>&\"'$x$</b>\x1b[31m"

# Llama-2-7B: 32 layers of 4 × 4,096² and 3 × 4,096 × 11,008, 65 norms of 4,096, 32,000 × 4,096 twice; the adapter is
# rank 16 on q_proj and v_proj: 32 × 2 × 2 × 16 × 4,096.
PARAMETERS = {
    "embeddings": 131_072_000,
    "attention": 2_147_483_648,
    "mlp": 4_328_521_728,
    "norms": 266_240,
    "head": 131_072_000,
    "adapter": 8_388_608,
}


def bar(label: str, chosen: bool = False, phase: str = "backward", host: float = 0.0, **gib: float) -> MemoryBar:
    return MemoryBar(label, {part: size * GIB for part, size in gib.items()}, phase, chosen, host * GIB)


BARS = (
    bar(
        "one device, micro-batch 4, no layer recomputed",
        chosen=True,
        weights=3.62,
        gradients=0.03,
        optimizer=0.06,
        activations=8.41,
        logits=0.25,
        buffers=0.1,
        fragmentation=0.5,
        context=0.5,
    ),
    bar(
        "one device, micro-batch 4, all layers recomputed",
        weights=3.62,
        gradients=0.03,
        optimizer=0.06,
        activations=2.2,
        logits=0.25,
        fragmentation=0.3,
        context=0.5,
    ),
    bar(
        "ZeRO-3 × 8 with the optimizer on the host, micro-batch 4",
        phase="optimizer_step",
        host=9.4,
        weights=1.2,
        activations=8.41,
        buffers=3.1,
        logits=0.25,
        context=0.9,
    ),
    bar(
        "full fine-tune on one device",
        phase="optimizer_step",
        weights=12.55,
        gradients=12.55,
        optimizer=75.3,
        context=0.5,
    ),
)

DEVICES = (
    DeviceRow(
        "NVIDIA GeForce RTX 4090",
        1,
        23.5 * GIB,
        13.47 * GIB,
        "one device, micro-batch 4",
        (4.9, 6.1, 8.2),
        (2.16, 2.68, 3.61),
        2.75,
        "It fits as it is.",
    ),
    DeviceRow(
        "NVIDIA L4",
        1,
        22.0 * GIB,
        13.47 * GIB,
        "one device, micro-batch 4",
        (16, 20, 27),
        (11.4, 14.2, 19.2),
        1.44,
        "It fits as it is.",
    ),
    DeviceRow(
        "NVIDIA H100 SXM5 80 GB",
        8,
        79.1 * GIB,
        41.2 * GIB,
        "DDP, micro-batch 16",
        (0.21, 0.26, 0.35),
        (4.2, 5.2, 7.0),
        1.46,
        "Plain data parallelism, for a copy fits each device.",
    ),
    DeviceRow(
        "AMD Instinct MI300X",
        1,
        191.7 * GIB,
        60.0 * GIB,
        "one device, micro-batch 32",
        (1.3, 1.6, 2.2),
        None,
        1.2,
        "It fits; no price is known.",
    ),
    DeviceRow(
        "NVIDIA GTX 1650",
        1,
        3.8 * GIB,
        5.9 * GIB,
        "none",
        None,
        None,
        None,
        "Even at micro-batch 1 with all layers recomputed 2.1 GiB are missing.",
    ),
)

TOKENS, MICRO_BATCHES = (512, 1024, 2048, 4096, 8192), (1, 2, 4, 8, 16)
GRID = LengthGrid(
    TOKENS,
    MICRO_BATCHES,
    # 4.8 GiB and 2.1 MiB a token.
    [[4.8 * GIB + 2.1 * MIB * tokens * size for size in MICRO_BATCHES] for tokens in TOKENS],
    chosen=(1024, 4),
)

QLORA_7B = PlanView(
    title="meta-llama/Llama-2-7b-hf · qlora r 16 · alpaca, 51,760 rows",
    facts={
        "parameters": "6.74 B, 8.39 M of them trained (0.12 %)",
        "global batch": "16 rows = micro-batch 4 × 1 rank × 4 accumulated",
        "steps": "9,705 in 3 epochs, 28.4 M tokens",
        "arithmetic": "7.6e17 FLOPs: 34 % forward, 33 % backward, 33 % attention",
    },
    sentence="It fits: one RTX 4090, micro-batch 4 with 4 accumulated, no layer recomputed; 10.0 GiB stay free.",
    parameters=PARAMETERS,
    device="NVIDIA GeForce RTX 4090",
    limit_bytes=LIMIT,
    bars=BARS,
    not_taken=[
        ("one device, all layers recomputed", "It fits too, and takes 28 % more time."),
        (
            "ZeRO-3 × 8 with the optimizer on the host, micro-batch 4",
            "Sharding is not needed: a copy fits each device.",
        ),
        ("full fine-tune on one device", "77.4 GiB are missing."),
    ],
    devices=DEVICES,
    grid=GRID,
    notes=["Prices are on-demand, read on 2026-11-28.", "Hours are for 35 % to 60 % of the dense bf16 peak."],
)

NOTHING_FITS = PlanView(
    title="70B · full",
    facts={},
    sentence="It needs 1,120 GiB, the device has 23.5 GiB: take more devices or method qlora.",
    parameters={"attention": 10, "mlp": 20},
    device="RTX 4090",
    limit_bytes=LIMIT,
    bars=(
        bar("full on one device", weights=130.4, gradients=130.4, optimizer=782.5),
        bar("full, ZeRO-3 × 8", phase="forward", weights=16.3, gradients=16.3, optimizer=97.8),
    ),
    devices=(DEVICES[-1],),
    grid=LengthGrid((512, 1024), (1, 2), [[40 * GIB, 50 * GIB], [50 * GIB, 70 * GIB]]),
)

# What decides is not the device's memory alone: the host's is short for a strategy, and how long a run is not known.
UNKNOWN_RUN = replace(
    QLORA_7B,
    bars=(replace(BARS[2], fits=False), BARS[1]),
    devices=(
        replace(DEVICES[0], hours=None, cost=None, kwh=None),
        replace(DEVICES[2], hours=None, cost=None, kwh=None, fits=False, why="The host's memory is short."),
    ),
)

BARE = PlanView("nothing", {}, "There is nothing to plan.", {}, "no device", 0.0, ())

HOSTILE = PlanView(
    title=EVIL,
    facts={EVIL: EVIL},
    sentence=EVIL,
    parameters={EVIL: 5},
    device=EVIL,
    limit_bytes=LIMIT,
    bars=(MemoryBar(EVIL, {EVIL: 3.0 * GIB}, EVIL, True), MemoryBar(EVIL * 4, {EVIL: 30.0 * GIB}, EVIL)),
    not_taken=[(EVIL, EVIL)],
    devices=(DeviceRow(EVIL, 1, LIMIT, GIB, EVIL * 3, (1, 2, 3), (1, 2, 3), 1.0, EVIL),),
    grid=GRID,
    currency="<&",
    notes=[EVIL],
)
