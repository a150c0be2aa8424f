"""Writing side of the outbox: writes payloads safely, limits concurrent writes, publishes."""
