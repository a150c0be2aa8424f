"""Shared parts of long-running processes: configuration, logging and assembly."""
