"""The status page at `/`, which works without its script."""
