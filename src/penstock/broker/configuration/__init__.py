"""Settings of the broker, of topics and of groups, under Kafka's names."""
