"""Base of consumer and share groups: members heartbeat, and the coordinator computes targets."""
