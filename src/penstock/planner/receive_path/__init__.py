"""`plan receive-path`: windows, terms, socket buffers, rings and timers of a receive path.

    network ─> RX ring ─> socket buffer ─> term buffer ─> subscriber
               packets      bytes           bytes
               = stall × packet rate        = window × 2, and bandwidth × stall × 2

A packet passes four buffers, each of which must hold what the next one's pause leaves in it. Three
count bytes and hang together (`chain`); the ring counts packets and is a time (`host`). What gets
lost all the same costs what the timers say (`recovery`). Sizes that are given are judged as the
driver and the kernel judge them; sizes left open are planned.

Source: the article "The Four Receive-Path Buffers"; Aeron's `Configuration.java`; the ENA Linux
driver's best practices.
"""

from penstock.planner.receive_path.inputs import FAMILIES, Family, ReceivePathInputs
from penstock.planner.receive_path.plan import plan_receive_path

__all__ = ["FAMILIES", "Family", "ReceivePathInputs", "plan_receive_path"]
