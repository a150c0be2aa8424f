"""Command group `penstock migrate`."""
