"""Every crash of a log store: power lost at any file call, with any part of what was not synced.

`python -m sim.storage` explores. `scenarios.py` says what a store is asked to do meanwhile,
`crashes.py` what a power loss leaves, `checks.py` what must be there afterwards, and `plants.py`
has bugs that must be found.
"""
