"""Read path of the outbox: verified payloads, without duplicates, and dead letters."""
