"""Connections of clients and peers: listeners, TLS, authentication, error codes."""
