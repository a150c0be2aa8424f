"""Listeners: TLS, tokens, limits per address."""
