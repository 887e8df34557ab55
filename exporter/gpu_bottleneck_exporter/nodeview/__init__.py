"""The node document behind the status page, `top` and `diagnose`.

`build` makes it from the sampler's state, `history` computes the shares of the last minute, `wire`
converts it to and from JSON.
"""
