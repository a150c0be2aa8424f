"""Console of a broker: web pages on the admin interface, with everything they need packaged."""
