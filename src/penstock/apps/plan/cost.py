"""Command `penstock plan cost`: compares monthly costs, from price files and the present date."""

from __future__ import annotations

import tomllib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import click

from penstock.apps.client.session import State
from penstock.apps.plan.output import plan_inputs, read_plan_file
from penstock.base.system import SYSTEM_CLOCK
from penstock.planner.cost import PRESETS, CostInputs, Prices, cost_plan, read_prices
from penstock.planner.quantities import InvalidPlanFile, table_text
from penstock.planner.results import Plan

OUR_PRICES: Final = "prices.toml"


def our_price_text() -> str:
    """Return the content of the package's price file."""
    return table_text("penstock.planner.cost", OUR_PRICES)


def load_prices(path: Path | None, today: date | None = None) -> Prices:
    """Return the package's prices, overridden by those of a user's file.

    Prices in the user's file that have no date count as today's.

    Raises:
        InvalidPlanFile: the file is not TOML, is too large, or has an invalid price.
    """
    known = read_prices(tomllib.loads(our_price_text()), OUR_PRICES)
    if path is None:
        return known
    return read_prices(read_plan_file(path, tomllib.loads), str(path), known, today)


def write_prices(path: Path) -> None:
    """Write the package's prices to a new file, for editing.

    Raises:
        InvalidPlanFile: the file exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(our_price_text())
    except FileExistsError:
        raise InvalidPlanFile(f"{path} exists already; name another file") from None
    except OSError as error:
        raise InvalidPlanFile(f"{path}: {error.strerror}") from None


@click.command("cost")
@click.option(
    "--prices", "prices_file", type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with prices that replace those of the package; it needs only the prices that"
    " differ.",
)  # fmt: skip
@click.option(
    "--write-prices", "write_prices_file", type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE", help="Write the package's prices to a new FILE, for editing, and stop.",
)  # fmt: skip
@click.option(
    "--preset", type=click.Choice(list(PRESETS)),
    help="Use the inputs of a published example; --inputs and other options override them.",
)  # fmt: skip
@plan_inputs(CostInputs, presets={name: one.inputs for name, one in PRESETS.items()})
def cost(
    state: State,
    inputs: CostInputs,
    prices_file: Path | None,
    write_prices_file: Path | None,
    preset: str | None,
) -> Plan:
    """Compare the monthly cost of several ways to carry the data.

    The ways are: own brokers with replicated disks, tiers or an object store; files on a shared
    file system with pointers on a log; managed streams. Each bill shows its lines, with quantity
    and price.
    """
    if write_prices_file is not None:
        write_prices(write_prices_file)
        click.echo(f"prices written: {write_prices_file}")
        raise click.exceptions.Exit(0)
    now = today()
    return cost_plan(inputs, load_prices(prices_file, now), now, preset=preset)


def today() -> date:
    """Return the present date in UTC."""
    return datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC).date()
