"""Who may do what: the same requests by the same principals to Penstock and to Apache Kafka."""
