"""Command group `penstock schema`: schemas of a registry, and moves between registries."""
