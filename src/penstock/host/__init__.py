"""Host ingest: one agent per host takes chunks of events from producers over a Unix socket."""
