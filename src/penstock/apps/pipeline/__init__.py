"""`penstock pipeline`: Spark pipelines that are files."""
