"""The reading end of the outbox: payloads verified, duplicates dropped, dead letters."""
