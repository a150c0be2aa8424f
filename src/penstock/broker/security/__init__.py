"""TLS and authentication of the broker's connections."""
