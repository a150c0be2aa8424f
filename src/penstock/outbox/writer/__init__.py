"""The writing end of the outbox: safe writes, admission, publishing."""
