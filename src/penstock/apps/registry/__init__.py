"""Command group `penstock registry`: the schema registry without a broker."""
