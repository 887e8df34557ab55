"""Recommends settings for idle GPUs, predicts their effect and scores the predictions."""
