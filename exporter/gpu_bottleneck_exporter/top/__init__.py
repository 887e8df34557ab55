"""`top`: one node live in a terminal.

Drawn with the standard library's curses: what is needed is a grid of coloured text, a key at a
time and a terminal that is left as it was found, on any machine where the exporter runs.
"""
