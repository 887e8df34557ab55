"""HTTP: which pages there are, where to listen, and the server between the two."""
