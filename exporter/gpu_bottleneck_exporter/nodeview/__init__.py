"""The node document behind the status page, `top` and `diagnose`.

`build` makes it, `history` computes the shares of the last minute, `wire` converts it to and from
JSON.
"""
