"""Receive path plan: windows, terms, socket buffers, rings and timers.

    network ─> RX ring ─> socket buffer ─> term buffer ─> subscriber
               packets      bytes           bytes
               = stall × packet rate        = window × 2, and bandwidth × stall × 2

A packet passes four buffers, each of which must hold what arrives during the next one's pause.
Three count bytes and depend on each other; the ring counts packets and is a time. The timers
determine the cost of losses. Given sizes are judged as the driver and the kernel judge them; other
sizes are planned.

Source: the article "The Four Receive-Path Buffers"; Aeron's `Configuration.java`; the ENA Linux
driver's best practices.
"""

from penstock.planner.receive_path.inputs import FAMILIES, Family, ReceivePathInputs
from penstock.planner.receive_path.plan import plan_receive_path

__all__ = ["FAMILIES", "Family", "ReceivePathInputs", "plan_receive_path"]
