"""Bounds of transactions: settings and constants.

`TransactionLimits` is filled from the broker's settings of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SAVE_RETRY_MS: Final = 1_000
WAIT_MS: Final = 500
"""Time that a request waits for changes under way before its client must retry.

Clients retry after 20 to 100 ms; a waiting request delays all later ones of its connection.
"""

PEER_WAIT_MS: Final = 20
"""Such a time for requests of other brokers: it delays their other requests as well."""

COMPLETION_LINGER_MS: Final = 100
"""Delay of the save that all markers are written.

Within it a busy producer begins its next transaction, and both changes are one save. After a crash
in between the markers are written again.
"""

WAITING_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Bounds of ids and transactions; times in milliseconds."""

    transactional_ids_max: int = 100_000
    transaction_partitions_max: int = 10_000
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
