"""Tests of dashboards and alert rules."""
