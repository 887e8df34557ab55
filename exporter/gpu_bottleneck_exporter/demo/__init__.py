"""Simulated GPUs, fed by real processes."""
