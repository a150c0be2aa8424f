"""Dead letters of share groups: copies of archived records in the topic that the group names.

`records.py` makes them, `topic.py` checks the topic, and `writer.py` writes them to it; only then
is a record resolved.
"""
