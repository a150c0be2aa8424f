"""Command group `penstock plan`: sizes, costs and checks."""
