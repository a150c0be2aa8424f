"""Topics, brokers and configs: the metadata image, its rules and its rows."""
