"""The report of the time that jobs lost, its causes and remedies."""
