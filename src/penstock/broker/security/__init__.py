"""The door of the broker: TLS, and who may say anything before it has said who it is."""
