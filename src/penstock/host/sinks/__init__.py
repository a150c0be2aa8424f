"""Where an agent's chunks go: nowhere, memory, an outbox, or the log."""
