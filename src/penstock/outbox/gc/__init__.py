"""What keeps the tree in order: the sweeper, and the audit."""
