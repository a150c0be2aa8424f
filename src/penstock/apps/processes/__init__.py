"""`penstock serve --processes N`: several brokers of one machine behind one command.

`plan.py` configures each broker, `parent.py` supervises them, `front.py` is the shared admin
address, and `admin_text.py` merges their answers.
"""
