"""Reads the GPUs and the host at each tick, and keeps what is known of them."""
