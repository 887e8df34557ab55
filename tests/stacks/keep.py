"""Run a command inside control groups that ends when its parent does.

    python -m stacks.keep PARENT CGROUPS COMMAND ...

The command replaces this process, which the caller starts as leader of a new session. CGROUPS are
folders of control groups, separated by colons.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpu_bottleneck_exporter.demo.orphans import die_with_parent


def main(parent: str, cgroups: str, *command: str) -> None:
    """Enter, and become the command; PR_SET_PDEATHSIG survives the exec."""
    die_with_parent(int(parent))
    for cgroup in filter(None, cgroups.split(":")):
        (Path(cgroup) / "cgroup.procs").write_text("0")
    os.execvp(command[0], command)  # noqa: S606 - the point of it


if __name__ == "__main__":
    main(*sys.argv[1:])
