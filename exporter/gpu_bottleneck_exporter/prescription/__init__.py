"""Recommends settings for idle GPUs, and scores its predictions."""
