"""One node as people see it: the document behind the status page, `top` and `diagnose`.

`build` makes it of the sampler's state, `history` the shares of the last minute in it, `wire` turns
it into JSON and back.
"""
