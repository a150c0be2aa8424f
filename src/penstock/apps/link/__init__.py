"""Command group `penstock link`."""
