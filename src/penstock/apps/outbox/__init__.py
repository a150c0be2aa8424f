"""Command group `penstock outbox`: payloads as files, and pointers to them on a topic."""
