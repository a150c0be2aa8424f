"""`penstock bench`: what this host can do, as plans compute with it."""
