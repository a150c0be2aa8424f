"""Writing side of the outbox: safe writes of files, admission of calls, publishing of records."""
