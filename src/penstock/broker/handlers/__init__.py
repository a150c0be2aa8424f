"""Handlers of the API keys, one module per family, imported at the first request of each."""
