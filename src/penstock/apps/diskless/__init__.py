"""Command group `penstock diskless`: objects of diskless topics."""
