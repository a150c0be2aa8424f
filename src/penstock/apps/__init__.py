"""The command line, and the only place that wires concrete things together."""
