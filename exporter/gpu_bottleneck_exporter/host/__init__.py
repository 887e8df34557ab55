"""The only place that reads /proc, /sys and cgroups; the roots are arguments."""
