"""Server of the agent: sockets, files and HTTP around the protocol's state machine."""
