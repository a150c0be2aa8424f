"""Shared parts of request handlers: authorisation, audit log, metrics, decompression."""
