"""`penstock plan`: sizes, costs, and checks."""
