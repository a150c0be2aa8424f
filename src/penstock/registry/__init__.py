"""Schema registry: schemas of topics and their versions, over Confluent's HTTP interface."""
