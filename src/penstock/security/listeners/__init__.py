"""What listeners need beside sockets: TLS, tokens, bounds by address."""
