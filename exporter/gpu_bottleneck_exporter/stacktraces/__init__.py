"""Which line of the job's Python code an idle GPU waited for."""
