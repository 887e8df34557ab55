"""A machine with simulated GPUs and real processes that feed them."""
