"""The jobs of this machine and their use of its GPUs: recorded, stored and served."""
