"""Security of listeners: TLS, tokens, and limits by client address."""
