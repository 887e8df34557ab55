"""The status page: what an exporter's `/` shows. It needs no script, and runs only its own."""

from gpu_bottleneck_exporter.web.status.page import status_page

__all__ = ["status_page"]
