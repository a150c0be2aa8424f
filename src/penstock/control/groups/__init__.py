"""What consumer groups keep: their offsets."""
