"""Creation and change of topics, and the topic of the audit log."""
