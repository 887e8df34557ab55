"""Prometheus exporter that says why a GPU is idle."""

__version__ = "0.1.0"
