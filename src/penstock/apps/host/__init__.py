"""Command group `penstock host`: the host agent, and clients of it."""
