"""The status page at `/`. It works without a script, and allows only its own."""
