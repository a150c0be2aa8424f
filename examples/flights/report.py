"""What the year says: slowest airlines, what weather does, what was impossible; and one plot."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd
from rich.console import Console
from rich.table import Table

from examples.flights.proof import rows

SLOWEST: Final = 8
WEATHER_KINDS: Final = (
    ("rain, 0.1 inch an hour or more", "precip >= 0.1"),
    ("fog, sight below 1 mile", "visib < 1"),
    ("wind of 25 mph or more", "wind_speed >= 25"),
    ("frost, 20 °F or less", "temp <= 20"),
    ("fair: dry, clear, little wind", "precip == 0 and visib >= 10 and wind_speed < 15"),
)


def show(folder: Path, console: Console) -> Path:
    """Print the tables and draw the plot; returns the plot's path."""
    columns = ["airline", "origin", "scheduled", "cancelled", "dep_delay", "temp", "wind_speed",
               "precip", "visib"]  # fmt: skip
    flights = rows(folder, "flights", columns).to_pandas()
    carriers = by_carrier(flights)
    weather = by_weather(flights)
    console.print(_table("Slowest airlines", carriers.head(SLOWEST)))
    console.print(_table("Weather at departure", weather))
    letters = rows(folder, "dead_letters", ["reason"]).to_pandas()
    console.print(_table("Dead letters", letters.value_counts("reason").to_frame("rows")))
    return draw(folder / "delays.png", carriers, flights)


def by_carrier(flights: pd.DataFrame) -> pd.DataFrame:
    """Flights, mean delay and share cancelled per airline, slowest first."""
    grouped = flights.groupby("airline").agg(
        flights=("cancelled", "size"),
        mean_delay=("dep_delay", "mean"),
        cancelled=("cancelled", "mean"),
    )
    return grouped.sort_values("mean_delay", ascending=False)


def by_weather(flights: pd.DataFrame) -> pd.DataFrame:
    """The same per kind of weather."""
    found = {}
    for name, test in WEATHER_KINDS:
        part = flights.query(test)
        delay, cancelled = part["dep_delay"].mean(), part["cancelled"].mean()
        found[name] = {"flights": len(part), "mean_delay": delay, "cancelled": cancelled}
    return pd.DataFrame.from_dict(found, orient="index")


def draw(path: Path, carriers: pd.DataFrame, flights: pd.DataFrame) -> Path:
    """Two panels: delay by airline, and by hour of the day in fair and in bad weather."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    ordered = carriers.iloc[::-1]
    left.barh(ordered.index, ordered["mean_delay"], color="#3b6ea5")
    left.set(title="Departure delay by airline", xlabel="minutes, mean of 2013")
    local = flights["scheduled"].dt.tz_convert("America/New_York")
    bad = (flights["precip"] >= 0.1) | (flights["visib"] < 1) | (flights["wind_speed"] >= 25)
    for name, part, colour in (("bad weather", bad, "#c0504d"), ("other", ~bad, "#3b6ea5")):
        by_hour = flights[part].groupby(local[part].dt.hour)["dep_delay"].mean()
        right.plot(by_hour.index, by_hour.to_numpy(), label=name, color=colour, marker="o")
    right.set_xticks(range(5, 24, 2))
    right.set(title="Departure delay through the day", xlabel="hour of departure, local time",
              ylabel="minutes, mean of 2013")  # fmt: skip
    right.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _table(title: str, frame: pd.DataFrame) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in frame.columns:
        table.add_column(str(name).replace("_", " "), justify="right")
    for label, row in frame.iterrows():
        table.add_row(str(label), *(_cell(str(name), row[name]) for name in frame.columns))
    return table


def _cell(name: str, value: float) -> str:
    if name == "mean_delay":
        return f"{value:.1f} min"
    if name == "cancelled":
        return f"{value:.1%}"
    return f"{int(value):,}"
