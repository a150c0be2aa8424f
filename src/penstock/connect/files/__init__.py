"""Connectors of files in directories and object stores: a source and a sink."""
