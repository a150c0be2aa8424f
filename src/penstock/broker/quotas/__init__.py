"""Quotas: what clients may use of this broker in a second, and how long they wait beyond it.

`entities.py` and `keys.py` say what a quota is of and what it bounds, `alteration.py` and
`matching.py` decide of changes and look-ups; `rates.py` measures, `table.py` finds what bounds a
client, `service.py` is what the request path asks.

Source: KIP-13 (byte rates), KIP-55 (users), KIP-124 (request time), KIP-219 (muting), KIP-546
(the API), KIP-599 (controller mutations), KIP-612 (connection rates).
"""

from __future__ import annotations
