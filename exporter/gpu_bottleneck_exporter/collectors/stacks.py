"""Lines of code that GPUs wait for: on pages and in documents, never as labels of a metric."""

from gpu_bottleneck_exporter.sampling.collector import Collector

COLLECTOR = Collector("stacks", (), lambda _: None, lambda _: [], on=False)
