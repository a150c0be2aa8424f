"""Shared parts of client commands: addresses, output, and messages about waiting."""
