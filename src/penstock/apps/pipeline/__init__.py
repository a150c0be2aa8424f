"""Command group `penstock pipeline`: Spark pipelines that are defined by files."""
