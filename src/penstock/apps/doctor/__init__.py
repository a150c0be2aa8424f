"""Checks of `penstock doctor`: of brokers, of the parts of an installation, and of this machine.

A check is a function that returns findings. All checks run concurrently, each with a time limit.
"""

from penstock.apps.checks.findings import Check, Finding, look

__all__ = ["Check", "Finding", "look"]
