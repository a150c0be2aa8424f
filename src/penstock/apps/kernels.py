"""`penstock kernels`: compile what opens records and values, once for all users of the package."""

from __future__ import annotations

import click

from penstock.apps.session import State


@click.command()
@click.pass_obj
def kernels(state: State) -> None:
    """Compile what opens records and values; prints the folder where that is kept.

    Run it after an installation, as a user who may write into the package or with PENSTOCK_KERNELS
    naming a folder that all processes read. Without it the first process of each user compiles,
    which takes some seconds.
    """
    from penstock.kernels.compiling import compile_all

    click.echo(f"kernels: {compile_all()}")
