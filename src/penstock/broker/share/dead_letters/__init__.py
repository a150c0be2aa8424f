"""Dead letters of share groups: what a group has given up, copied to the topic that it names.

`records.py` makes them by columns, `topic.py` says whether a topic may have them, `writer.py`
writes them, whoever leads the topic, and only then is a record settled.
"""
