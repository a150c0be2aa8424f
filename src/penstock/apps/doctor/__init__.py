"""Checks of `penstock doctor`: brokers, the parts of an installation, this machine.

A check is a function that returns findings. All checks run at once, each within a time limit.
"""

from penstock.apps.doctor.findings import Check, Finding, look

__all__ = ["Check", "Finding", "look"]
