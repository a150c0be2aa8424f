"""What every room stands on: ids, errors, settings, metrics, and the system's clock and dice."""
