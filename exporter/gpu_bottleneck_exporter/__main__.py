"""`python -m gpu_bottleneck_exporter` is the `gpu-bottleneck-exporter` command."""

from gpu_bottleneck_exporter.cli import main

if __name__ == "__main__":
    main()
