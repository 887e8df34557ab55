"""A notebook whose kernel has run one cell: `python -m stacks.loops.notebook [CELL]`."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from jupyter_client import KernelManager

from stacks.loops.gpu import pause

_FIRST = "from stacks.loops.common import *; from stacks.loops.gpu import *\n"
_HELD = f"{_FIRST}gpu = hold(); warm(gpu)"
CELLS = {"idle": "", "sleep": "import time; time.sleep(10**6)", "burn": "train(lambda: burn(WAIT))"}


def main(cell: str) -> None:
    """Run the cells, and leave the kernel open."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    client.execute(_HELD)
    client.execute(CELLS[cell])
    pause()
