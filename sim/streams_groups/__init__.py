"""Streams groups in a seeded world, in which threads, topologies and topics change."""
