"""Second passes through a pipeline: replay of dead letters, release of parked records, backfills.

Each command first shows what it would do, and does it once, even if it is interrupted.
"""
