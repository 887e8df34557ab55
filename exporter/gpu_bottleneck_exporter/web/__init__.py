"""The HTTP server, its listening socket and its pages."""
