"""Whose a GPU is: from its main processes to pod, container, job and user."""
