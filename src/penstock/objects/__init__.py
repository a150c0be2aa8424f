"""Objects in a store: the port, its forms, the range cache, hot and cold fetch paths."""
