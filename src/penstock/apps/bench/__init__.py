"""`penstock bench`: measures this host for the formulas of plans."""
