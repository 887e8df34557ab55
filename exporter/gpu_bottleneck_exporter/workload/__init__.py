"""Maps the processes on a GPU to pod, container, job and user."""
