"""Evaluation of consumer lag: rules without I/O (`rules.py`), and their inputs (`service.py`)."""
