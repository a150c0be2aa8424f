"""`penstock host`: the agent of a host, and its clients."""
