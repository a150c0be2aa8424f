"""What one broker decides for all: consumer groups, by keys that belong to one broker each."""
