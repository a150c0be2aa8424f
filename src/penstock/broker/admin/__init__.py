"""Admin HTTP interface of the broker: health, metrics, and the state of topics, groups and logs."""
