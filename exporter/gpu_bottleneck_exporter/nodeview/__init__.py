"""One node as people see it: the model behind the status page and `top`.

A `Reading` is built from metric families, of this process or of another exporter's `/metrics`, so
that people never see anything that Prometheus does not. A `History` of readings turns counters
into shares of the last minute, and into a likely cause.
"""
