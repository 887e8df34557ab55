"""The only place that talks to a GPU driver."""
