"""Second passes through a pipeline: replay of dead letters, release of parked records, backfills.

Each command first shows what it would do. It takes effect exactly once, even if it is interrupted
and called again.
"""
