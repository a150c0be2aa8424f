"""What carrying a workload costs."""
