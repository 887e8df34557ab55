"""Recognises jobs and machines by control groups of their managers."""

from __future__ import annotations

import re
from typing import NamedTuple


class Scheme(NamedTuple):
    """The control groups of one scheduler."""

    scheduler: str
    pattern: str
    """Folders of a job in a path; the first group is the job id."""
    source: str
    """Code or page that documents them."""
    is_machine: bool = False
    """Whether it is a machine, whose pods and containers have owners."""


SCHEMES = (
    Scheme(
        "pbs",
        r"pbs(?:_jobs|pro)\.(?:service|slice)/(?:jobid|jobs)/([^/]+)",
        "https://github.com/openpbs/openpbs/blob/master/src/hooks/cgroups/pbs_cgroups.PY",
    ),
    Scheme(
        "pbs",
        r"pbspro\.slice/pbspro-([^/]+)\.slice",
        "https://github.com/openpbs/openpbs/blob/v19.1.1/src/hooks/cgroups/pbs_cgroups.PY",
    ),
    Scheme(
        "torque",
        r"torque/([0-9][^/]*)",
        "https://github.com/adaptivecomputing/torque/blob/master/src/resmom/trq_cgroups.c",
    ),
    Scheme(
        "lsf",
        r"lsf/[^/]+/job\.([0-9]+(?:\[[0-9]+\])?)(?:\.[0-9]+)*",
        "https://www.ibm.com/support/pages/how-does-lsf-calculate-max-memory-usage-cgroup",
    ),
    Scheme(
        "htcondor",
        r"(?:htcondor|condor\.service)/condor_[^/]*?(slot[0-9]+(?:_[0-9]+)?(?:@[^/]+)?)",
        "https://htcondor.readthedocs.io/en/latest/admin-manual/ep-policy-configuration.html",
    ),
    Scheme(
        "flux",
        r"imp-shell-[0-9]+-((?:ƒ|\\xc6\\x92|f)[1-9A-HJ-NP-Za-km-z]+)\.service",
        "https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man5/flux-config-exec.html",
    ),
    Scheme(
        "flux",
        r"flux-((?:ƒ|\\xc6\\x92)[1-9A-HJ-NP-Za-km-z]+|[0-9]{5,})(?:\.scope|\.service)?",
        "https://flux-framework.readthedocs.io/projects/flux-rfc/en/latest/spec_19.html",
    ),
    Scheme(
        "gridengine",
        r"(?:UGE|AGE|SGE)/([0-9]+\.[0-9]+)",
        "https://gridengine.eu/mangridengine/htmlman5/sge_conf.html",
    ),
    Scheme(
        "oar",
        r"oar/[^/]+_([0-9]+)",
        "https://github.com/oar-team/oar/blob/master/sources/core/tools/job_resource_manager_cgroups.pl",
    ),
    Scheme(
        "yarn",
        r"(?:hadoop-)?yarn/container_(?:e[0-9]+_)?([0-9]+_[0-9]+)_[0-9]+_[0-9]+",
        "https://hadoop.apache.org/docs/stable/hadoop-yarn/hadoop-yarn-site/NodeManagerCgroups.html",
    ),
    Scheme(
        "nomad",
        r"nomad(?:\.slice)?(?:/(?:shared?|reserved?)(?:\.slice)?)?"
        r"/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.[^/]+",
        "https://github.com/hashicorp/nomad/tree/main/client/lib/cgroupslib",
    ),
    Scheme(
        "lxc",
        r"lxc(?:\.payload\.|(?:\.payload)?/)([^/]+)",
        "https://linuxcontainers.org/lxc/manpages/man5/lxc.container.conf.5.html",
        is_machine=True,
    ),
    Scheme(
        "nspawn",
        r"machine\.slice/(?:systemd-nspawn@|machine-(?!qemu|libpod))([^/]+)\.(?:service|scope)",
        "https://www.freedesktop.org/software/systemd/man/latest/systemd-nspawn.html",
        is_machine=True,
    ),
)
_PATTERNS = [(it, re.compile(rf"(?:^|/){it.pattern}(?=/|$)")) for it in SCHEMES]


class SchedulerJob(NamedTuple):
    """A job or machine in the path of a control group."""

    name: str
    """Scheduler and job id: `pbs-1234.server`."""
    is_machine: bool
    end: int
    """End of its folder in the path."""


def job_in(path: str) -> SchedulerJob | None:
    """The job, or else the machine, of control group `path`, or None."""
    for scheme, pattern in _PATTERNS:
        if match := pattern.search(path):
            name = f"{scheme.scheduler}-{_unescaped(match[1])}"
            # Room for a job id with a host name.
            return SchedulerJob(name[:128], scheme.is_machine, match.end())
    return None


def _unescaped(name: str) -> str:
    """The systemd unit name without escapes (systemd-escape(1))."""

    def text(escaped: re.Match[str]) -> str:
        return bytes.fromhex(escaped[0].replace("\\x", "")).decode(errors="replace")

    return re.sub(r"(?:\\x[0-9a-f]{2})+", text, name)
