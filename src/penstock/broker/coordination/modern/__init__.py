"""What kinds of groups share whose members heartbeat and are assigned: epochs and targets."""
