"""`penstock pipeline`: Spark pipelines defined in files."""
