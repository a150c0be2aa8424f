"""Logs of tiered partitions: segments to copy to the archive, and local retention."""
