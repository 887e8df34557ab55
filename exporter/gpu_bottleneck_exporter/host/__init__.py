"""Reads /proc, /sys and cgroups, at roots given as arguments."""
