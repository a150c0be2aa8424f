"""Gossip of brokers that die, stop, restart and lose what they send; `world.py` tells stories."""
