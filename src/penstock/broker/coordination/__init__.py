"""Coordinators of groups and transactions; each group or transactional id belongs to one broker."""
