"""One node as people look at it: the model behind the status page and `top`.

A `Reading` is taken from metric families, of this process or of another exporter's `/metrics`,
so that people are never shown anything else than Prometheus is. A `History` of readings turns
counters into shares of the time just gone, and into a likely cause.
"""
