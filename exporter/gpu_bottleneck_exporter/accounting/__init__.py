"""Accounting of GPU time: busy windows, and idle time by cause."""
