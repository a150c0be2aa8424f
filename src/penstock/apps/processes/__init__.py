"""`penstock serve --processes N`: several brokers of one machine in one command.

`plan.py` computes the settings of each broker, `parent.py` starts and restarts them, `front.py` is
the one admin address, `admin_text.py` combines several answers.
"""
