"""Consumer groups in a seeded world: members, a network, a store, topics that change, and crashes.

The classes of the broker run as they are; what shells do is played here.
"""
