"""Topics, brokers and configs: their rules and rows."""
