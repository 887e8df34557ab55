"""The drivers of GPUs: all that talks to one."""
