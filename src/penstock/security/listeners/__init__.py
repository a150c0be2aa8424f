"""TLS, tokens and limits by address of listeners."""
