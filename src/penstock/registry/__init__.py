"""Schema registry: schemas of topics, their versions and compatibility, over Confluent's HTTP API."""
