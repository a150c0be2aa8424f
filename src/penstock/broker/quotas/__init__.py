"""Client quotas: limits on the use of a broker, and the throttling of clients above them.

Source: KIP-13 (byte rates), KIP-55 (users), KIP-124 (request time), KIP-219 (muting), KIP-546 (the
API), KIP-599 (controller mutations), KIP-612 (connection rates).
"""

from __future__ import annotations
