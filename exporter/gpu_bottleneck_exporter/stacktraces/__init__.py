"""Finds the line of the job's Python code that an idle GPU waited for."""
