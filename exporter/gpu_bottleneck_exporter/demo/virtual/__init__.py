"""A driver for simulated GPUs."""
