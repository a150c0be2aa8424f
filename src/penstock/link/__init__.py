"""Links: topics that follow topics of another cluster, batch for batch."""
