"""Host ingest in simulation: producers, agents, their links, and a log that remembers."""
