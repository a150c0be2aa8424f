"""Simulations: the product's cores under a seeded scheduler, in virtual time, with faults."""
