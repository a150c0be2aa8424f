"""The agent: sockets and files around the protocol's core."""
