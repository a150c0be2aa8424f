"""Dead letters of share groups: copies of archived records in the group's dead letter topic.

`records.py` builds the dead letters, `topic.py` checks the topic, and `writer.py` writes them. A
record is resolved only after its dead letter is written.
"""
