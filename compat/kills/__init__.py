"""kill -9 of producers and brokers at each step of a transaction; see `test_transaction_kills`."""
