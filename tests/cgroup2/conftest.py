"""The tests in `guest` run in the small machine only."""

from __future__ import annotations

import os

from cgroup2.machine import INSIDE

collect_ignore = [] if os.environ.get(INSIDE) else ["guest"]
