"""HTML, drawings and style that the status page and reports have in common."""
