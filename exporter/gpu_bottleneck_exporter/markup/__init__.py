"""HTML, strips and style of the status page and reports."""
