"""Command group `penstock connect`: connectors that are defined by files."""
