"""From the sampled state to what Prometheus scrapes."""
