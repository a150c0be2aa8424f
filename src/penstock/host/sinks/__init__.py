"""Where an agent's chunks go: nowhere, memory, the outbox, the log."""
