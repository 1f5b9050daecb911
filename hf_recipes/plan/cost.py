"""What a run costs: hours × devices × price, what spot machines add by being taken back, and energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_recipes.core.accelerators import Accelerator
from hf_recipes.core.errors import UserError
from hf_recipes.plan.prices import Price, Purchase, price_of
from hf_recipes.plan.utilization import Band


@dataclass(frozen=True)
class Interruptions:
    """How spot machines are taken back.

    Attributes:
        per_day: how often in a day of running; vendors publish monthly shares of 5 % to over 20 % at most, so one a day
            is on the careful side, and for many devices at once it is not.
        restart_hours: from the interruption until training goes on.
        save_hours: between two saves; half of it is lost where no notice came in time.
    """

    per_day: float = 1.0
    restart_hours: float = 1 / 6
    save_hours: float = 0.5

    @property
    def lost_hours(self) -> float:
        """Of one interruption: the restart and half a save interval."""
        return self.restart_hours + self.save_hours / 2


@dataclass(frozen=True)
class Power:
    """What energy is counted from.

    Attributes:
        load: share of its board power that a device draws while training.
        host: what its part of the host draws, in shares of the board power; a DGX H100 may take 10.2 kW for 5.6 kW of
            boards, at most.
        pue: what the building takes for each unit that its computers take; 1.56 is the mean of data centres (Uptime
            Institute, survey of 2024), large clouds tell 1.1, a desk has 1.
        usd_per_kwh: price of energy, None to leave it out (rented machines include it).
    """

    load: float = 0.8
    host: float = 0.3
    pue: float = 1.56
    usd_per_kwh: float | None = None


@dataclass(frozen=True)
class Cost:
    """What one run costs on one kind of device.

    Attributes:
        accelerator, devices: on what.
        purchase: how it is rented.
        hours: of the run, with what interruptions add.
        price: of one device and hour; None where none is known.
        usd: of the run; None without a price.
        kwh: energy; None where the device's power is not known.
        energy_usd: of the energy; None without its price.
    """

    accelerator: Accelerator
    devices: int
    purchase: Purchase
    hours: Band
    price: Price | None
    usd: Band | None
    kwh: Band | None
    energy_usd: Band | None


def cost_of(
    accelerator: Accelerator,
    devices: int,
    hours: Band,
    *,
    purchase: Purchase = "on-demand",
    own_price: float | None = None,
    interruptions: Interruptions | None = None,
    power: Power | None = None,
) -> Cost:
    """Cost one run.

    Args:
        accelerator: the device.
        devices: how many.
        hours: the run takes without interruptions.
        purchase: ``spot`` adds what `interruptions` cost.
        own_price: USD for one device and hour, in place of the table's.
        interruptions: of spot machines; the default where None.
        power: load, PUE and the price of energy; the default where None.

    Raises:
        UserError: the price is none, or interruptions come faster than the run gets on.
    """
    power = power or Power()
    price = price_of(accelerator.key, purchase, own_price)
    if purchase == "spot":
        hours = hours.times(interrupted(1.0, interruptions or Interruptions()))
    kwh = None
    if accelerator.watts:
        kwh = hours.times(devices * accelerator.watts / 1000 * (power.load + power.host) * power.pue)
    return Cost(
        accelerator=accelerator,
        devices=devices,
        purchase=purchase,
        hours=hours,
        price=price,
        usd=None if price is None else hours.times(devices * price.usd_per_hour),
        kwh=kwh,
        energy_usd=None if kwh is None or power.usd_per_kwh is None else kwh.times(power.usd_per_kwh),
    )


def interrupted(hours: float, interruptions: Interruptions) -> float:
    """Hours on machines that are taken back. Each interruption costs `lost_hours`, in which they go on being taken
    back: T = hours + rate · T · lost, so T = hours / (1 - rate · lost).

    Raises:
        UserError: more is lost than is done.
    """
    lost = interruptions.per_day / 24 * interruptions.lost_hours
    if lost >= 1:
        raise UserError(
            f"Spot: {interruptions.per_day:g} interruptions a day that cost {interruptions.lost_hours:.1f} h each "
            "leave no time to train: save more often, or take on-demand machines."
        )
    return hours / (1 - lost)


def compare_costs(
    runs: Sequence[tuple[Accelerator, int, Band]],
    *,
    purchases: Sequence[Purchase] = ("on-demand",),
    own_price: float | None = None,
    interruptions: Interruptions | None = None,
    power: Power | None = None,
) -> tuple[Cost, ...]:
    """The same job on several kinds of device, the cheapest first; those without a price last, the fastest first.

    Args:
        runs: (device, how many, hours of the job on them).
        purchases: each way of renting is a row of its own; ways that have no price are left out where another has one.
        own_price, interruptions, power: as in `cost_of`.
    """
    rows: list[Cost] = []
    for accelerator, devices, hours in runs:
        ways = [
            cost_of(
                accelerator,
                devices,
                hours,
                purchase=purchase,
                own_price=own_price,
                interruptions=interruptions,
                power=power,
            )
            for purchase in purchases
        ]
        priced = [each for each in ways if each.usd is not None]
        rows += priced or ways[:1]
    return tuple(sorted(rows, key=lambda row: (row.usd is None, row.usd.expected if row.usd else row.hours.expected)))
