"""`top`: one node live in a terminal.

It uses the standard library's curses. All it needs is a grid of coloured text, single keys and a
terminal that is restored at the end, on any machine where the exporter runs.
"""
