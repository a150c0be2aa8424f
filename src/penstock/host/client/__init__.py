"""Clients of the host agent: blocking for threads, asyncio for event loops."""
