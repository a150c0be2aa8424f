"""Write path of the outbox: safe writes, admission, publishing."""
