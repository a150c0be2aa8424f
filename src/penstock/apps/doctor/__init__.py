"""Checks of `penstock doctor`: brokers, storage, this machine.

A check is a function that returns findings. Checks run concurrently, each within a time limit.
"""

from penstock.apps.doctor.findings import Check, Finding, look

__all__ = ["Check", "Finding", "look"]
