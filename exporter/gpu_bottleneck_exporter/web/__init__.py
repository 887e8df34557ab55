"""HTTP: the pages, the listening sockets, and the server in between."""
