"""Receive path plan: windows, terms, socket buffers, rings and timers of a host with Aeron.

    network ─> RX ring ─> socket buffer ─> term buffer ─> subscriber
               packets      bytes           bytes
               = stall × packet rate        = window × 2, and bandwidth × stall × 2

A packet passes through these buffers. Each must hold what arrives while the next one pauses. The
window, the socket buffer and the term are bytes and depend on each other. The ring is a number of
packets, so its size is a time at a given packet rate. The timers determine the cost of losses.
Given sizes are checked with the rules of the driver and of the kernel; other sizes are planned.

Source: the article "The Four Receive-Path Buffers"; Aeron's `Configuration.java`; the ENA Linux
driver's best practices.
"""

from penstock.planner.receive_path.inputs import FAMILIES, Family, ReceivePathInputs
from penstock.planner.receive_path.plan import plan_receive_path

__all__ = ["FAMILIES", "Family", "ReceivePathInputs", "plan_receive_path"]
