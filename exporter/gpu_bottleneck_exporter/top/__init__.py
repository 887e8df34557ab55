"""`top`: one node, live in a terminal, drawn with curses."""
