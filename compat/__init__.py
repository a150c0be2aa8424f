"""Foreign clients against a Kafka-compatible server: Apache Kafka as the oracle, or Penstock."""
