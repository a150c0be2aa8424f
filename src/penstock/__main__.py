"""`python -m penstock`."""

from penstock.apps.cli import main

main()
