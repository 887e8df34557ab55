"""The status page at `/`. It works without a script, and allows only its own."""

from gpu_bottleneck_exporter.web.status.page import status_page

__all__ = ["status_page"]
