"""Diskless topics in simulation: brokers without data, an object store and a plane that fail."""
