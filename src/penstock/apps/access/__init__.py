"""Command groups for users and access control lists."""
