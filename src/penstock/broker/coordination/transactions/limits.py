"""The bounds of transactions: those that are settings, and those that are facts.

`TransactionLimits` is filled from the broker's settings of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SAVE_RETRY_MS: Final = 1_000
"""Pause before a save that failed is tried again."""

WAIT_MS: Final = 500
"""How long a request waits for the end of what is under way, before its client is told to come
again. A client does so after 20 to 100 ms, and everything behind the request on its connection
waits with it."""

PEER_WAIT_MS: Final = 20
"""How long what another broker adds to a transaction waits: what else it asks for waits as
long."""

COMPLETION_LINGER_MS: Final = 100
"""How long it may stay unsaved that all markers of a transaction are written: within it a busy
producer begins the next one, and both are one save. A coordinator that dies meanwhile leaves
markers that are written once more."""

WAITING_MAX: Final = 1_000
"""Requests of one transactional id that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Bounds of ids and transactions; times in milliseconds."""

    transactional_ids_max: int = 100_000
    transaction_partitions_max: int = 10_000
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
