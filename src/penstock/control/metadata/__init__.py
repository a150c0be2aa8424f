"""Topics, brokers, configs, offsets and groups: their rules and their rows."""
