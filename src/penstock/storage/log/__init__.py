"""Log of one partition, and the parts that it holds over one state."""
