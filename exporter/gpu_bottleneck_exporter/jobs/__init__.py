"""The ledger of jobs: what each did with its GPUs, from its first process to its last."""
