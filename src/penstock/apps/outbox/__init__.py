"""`penstock outbox`: payloads as files, pointers on a topic."""
