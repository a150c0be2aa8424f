"""Checks of brokers, shared by `penstock doctor` and the commands on the log."""
