"""`penstock kernels`: compiles the decoders of records once for all users of the package."""

from __future__ import annotations

import click

from penstock.apps.session import State


@click.command()
@click.pass_obj
def kernels(state: State) -> None:
    """Compile the decoders of records and values; print the folder that caches them.

    Run it after an installation, as a user who may write into the package or with PENSTOCK_KERNELS
    naming a folder that all processes can read. Without it the first process of each user compiles,
    which takes some seconds.
    """
    from penstock.kernels.compiling import compile_all

    click.echo(f"kernels: {compile_all()}")
