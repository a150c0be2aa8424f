"""`penstock serve`: one broker in this process, or several brokers of one machine."""
