"""Reading side of the outbox: verified payloads without duplicates, and dead letters."""
