"""Grafana dashboards and Prometheus alert rules, generated from the declarations of metrics."""
