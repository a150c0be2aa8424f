"""Entry point of `python -m penstock`, which runs the command `penstock`."""

from penstock.apps.cli import main

main()
