"""Stories from end to end: processes are killed, the power fails, and everything is still there.

The other folders of tests mirror the tree of the source; these go through several rooms.
"""
