"""The parent of Spark's Python workers, with the points of `hooks.py` in it."""

from __future__ import annotations

if __name__ == "__main__":
    from pyspark import daemon as parent

    from penstock.spark.reads import daemon

    daemon.preload()
    import tests.scenarios.spark.hooks  # noqa: F401

    parent.manager()
