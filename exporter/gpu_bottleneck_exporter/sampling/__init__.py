"""Samples the GPUs and the host at each tick and retains their state."""
