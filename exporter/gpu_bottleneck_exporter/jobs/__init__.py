"""The jobs of this machine and their use of GPUs: recorded, stored and served."""
