"""Who owns the work on a GPU: from its main processes to pod, container, job and user."""
