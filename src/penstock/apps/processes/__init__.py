"""`penstock serve --processes N`: several brokers of one machine behind one command.

`plan.py` says what each broker is told, `parent.py` starts them and keeps them, `front.py` is the
one admin address, `admin_text.py` what it makes of several answers.
"""
