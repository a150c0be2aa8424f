"""What `penstock doctor` looks at: brokers, the places of an installation, this machine.

A check is a function that returns findings. All of them are looked at, at once, each for a bounded
time, whatever becomes of the others.
"""

from penstock.apps.doctor.findings import Check, Finding, look

__all__ = ["Check", "Finding", "look"]
