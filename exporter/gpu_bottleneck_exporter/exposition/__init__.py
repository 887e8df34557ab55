"""Prometheus exposition of the sampled state."""
