"""Finds the line of Python code that an idle GPU waited for."""
