"""Commands for users and access control lists."""
