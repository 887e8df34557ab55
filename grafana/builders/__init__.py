"""Builds the dashboards in the folder above: `PYTHONPATH=grafana python -m builders`."""
