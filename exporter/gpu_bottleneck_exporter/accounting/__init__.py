"""Where GPU time goes: busy windows, and idle time by what it waited on."""
