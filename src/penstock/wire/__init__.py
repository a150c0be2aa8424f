"""Network protocols: Kafka's (`wire.kafka`), and the frame protocol of the host socket."""
