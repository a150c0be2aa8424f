"""The thresholds, as data: one table, of which each row is a rule with its source."""

from penstock.planner.choosing.rules.brokers import BROKER_RULES
from penstock.planner.choosing.rules.direct import DIRECT_RULES
from penstock.planner.choosing.rules.language import Rule, Test
from penstock.planner.choosing.rules.layers import LAYER_RULES
from penstock.planner.choosing.rules.outboxes import OUTBOX_RULES

RULES: tuple[Rule, ...] = (*BROKER_RULES, *OUTBOX_RULES, *DIRECT_RULES, *LAYER_RULES)

__all__ = ["RULES", "Rule", "Test"]
