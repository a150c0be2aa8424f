"""Command `penstock bench`: measures a host or a broker, as input of `penstock plan capacity`."""
