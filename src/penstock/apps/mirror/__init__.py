"""Command group `penstock mirror`."""
