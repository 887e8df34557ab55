"""A Slurm cluster on this machine: Debian 13's own daemons in a folder of their own, on loopback.

Debian 12 has Slurm 22.05, whose sacctmgr stores comments in lower case. GPUs are files, as Slurm
only hands out their numbers; nodes are addresses of loopback.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import gpu_bottleneck_exporter
from support.daemon import HOST, free_port
from support.rights import with_mounts_of_its_own
from support.tools import WITH_US, require
from support.waiting import eventually, until

NODES = {"node1": HOST, "node2": "127.0.0.2"}
GPUS = 2
"""Number of GPUs of each node."""
HERE = "/mnt"
"""Folder of the test as the programs inside see it; the package is in `/opt/ours`."""
_PACKAGES = "slurmctld,slurmd,slurmdbd,slurm-client,munge,mariadb-server,python3"
_SLURM = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket=/mnt/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=/mnt/state
SlurmdSpoolDir=/mnt/spool-%n
SlurmctldPidFile=/mnt/slurmctld.pid
SlurmdPidFile=/mnt/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting}
AccountingStoragePass=/mnt/munge
AccountingStorageTRES=gres/gpu
EpilogSlurmctld=/mnt/epilog
SchedulerParameters=sched_interval=1,sched_min_interval=0
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres=gpu:{gpus}"
)
_ACCOUNTING = """
AuthType=auth/munge
AuthInfo=socket=/mnt/munge
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={accounting}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
PidFile=/mnt/slurmdbd.pid
"""
_USER = """
CREATE DATABASE slurm_acct_db;
CREATE USER slurm@'%' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct_db.* TO slurm@'%';
"""
"""A statement a line. If slurmdbd makes the database, MariaDB 11.8.9 refuses its next query."""
_MOUNTS = """
mount --make-rprivate /
cd "$1"
mount --rbind /dev dev
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount --bind "$2" mnt
mount --bind "$2/hosts" etc/hosts
mkdir -p opt/ours
mount --bind "$3" opt/ours
echo mounted
exec sleep infinity
"""


@dataclass(frozen=True)
class Cluster:
    """It runs."""

    folder: Path
    """The folder that the programs inside see as `HERE`."""
    enter: tuple[str, ...]

    def run(self, *command: str) -> str:
        """Output of `command`, run inside; fails if it does."""
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """The number of a new job that runs `script`, of shell."""
        (self.folder / "job").write_text(f"#!/bin/sh\n{script}\n")
        output = f"--output={HERE}/out-%j"
        return self.run("sbatch", "--parsable", output, *options, f"{HERE}/job")

    def finish(self, job: str) -> None:
        """Wait until `job`, and its epilog on the controller, have ended."""
        until(
            lambda: (
                not self.run("squeue", "--noheader", "--states=all", f"--jobs={job}")
                or not self.run("squeue", "--noheader", f"--jobs={job}")
            ),
            lambda: f"job {job}: {self.run('squeue')}\n{self.log}",
        )

    def accounted(self, job: str, what: str) -> str:
        """A field of `job` in the accounting."""
        return self.run("sacct", "-X", "-P", "-n", f"--jobs={job}", f"--format={what}")

    @property
    def log(self) -> str:
        """The last of what the daemons said."""
        texts = (path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
        return "\n".join(texts)


def debian(folder: Path) -> Path:
    """A root folder with Debian's Slurm; SLURM_ROOT names one that was made before."""
    if made := os.environ.get("SLURM_ROOT"):
        return Path(made)
    build = [require("mmdebstrap", "mmdebstrap"), "--quiet", "--variant=minbase"]
    build += [f"--include={_PACKAGES}", '--aptopt=APT::Install-Recommends "false"']
    subprocess.run([*build, "trixie", f"{folder}"], check=True)
    return folder


@contextmanager
def cluster(folder: Path, root: Path, epilog: str) -> Iterator[Cluster]:
    """The daemons, with `epilog`, a script, run on the controller after each job."""
    ports = {name: f"{free_port()}" for name in ("controller", "accounting", "database")}
    _configure(folder, epilog, ports)
    with ExitStack() as stack:
        enter = stack.enter_context(_inside(folder, root))
        result = Cluster(folder, enter)

        def start(name: str, *command: str) -> None:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            arguments = [*WITH_US, *enter, *command]
            process = subprocess.Popen(arguments, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)

        _keep_books(result, start, ports)
        start("slurmctld", "slurmctld", "-D", "-c")
        for name in NODES:
            start(name, "slurmd", "-D", "-N", name)
        idle = "\n".join(["idle"] * len(NODES))
        until(lambda: _said(result, "sinfo", "-h", "-N", "-o", "%T") == idle, lambda: result.log)
        yield result
        result.run("scancel", "--full", "--partition=all")
        eventually(lambda: not result.run("squeue", "--noheader"))


def _said(inside: Cluster, *command: str) -> str:
    done = subprocess.run([*inside.enter, *command], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _keep_books(inside: Cluster, start: object, ports: dict[str, str]) -> None:
    """Munge, the database and slurmdbd."""
    assert callable(start)
    keys = (f"--{name}-file={HERE}/munge.{name}" for name in ("key", "pid", "log", "seed"))
    start("munged", "munged", "--force", "--foreground", f"--socket={HERE}/munge", *keys)
    data = f"--datadir={HERE}/database"
    plain = ("--auth-root-authentication-method=normal", "--skip-test-db")
    inside.run("mariadb-install-db", "--no-defaults", "--user=root", data, *plain)
    listen = (f"--bind-address={HOST}", f"--port={ports['database']}", "--socket=/tmp/mariadb")
    first = (f"--init-file={HERE}/user.sql", "--innodb-lock-wait-timeout=900")
    start("mariadb", "mariadbd", "--no-defaults", "--user=root", data, *listen, *first)
    log = inside.folder / "mariadb.log"
    until(lambda: "ready for connections" in log.read_text(), log.read_text)
    start("slurmdbd", "slurmdbd", "-D")
    until(
        lambda: "test" in _said(inside, "sacctmgr", "-n", "show", "cluster") or _named(inside),
        lambda: inside.log,
    )


def _named(inside: Cluster) -> bool:
    return "Adding" in _said(inside, "sacctmgr", "-i", "add", "cluster", "test")


def _configure(folder: Path, epilog: str, ports: dict[str, str]) -> None:
    rows = [_NODE.format(name=name, port=free_port(), gpus=GPUS) for name in NODES]
    gpus = "".join(
        f"NodeName={node} Name=gpu File=/dev/{path}\n"
        for node in NODES
        for path in ("null", "zero")
    )
    hosts = "".join(f"{address} {name}\n" for name, address in NODES.items())
    texts = {
        "slurm.conf": _SLURM.format(**ports, nodes="\n".join(rows)),
        "slurmdbd.conf": _ACCOUNTING.format(**ports),
        "gres.conf": gpus,
        "cgroup.conf": "CgroupPlugin=disabled\n",
        "hosts": f"127.0.0.1 localhost {os.uname().nodename}\n{hosts}",
        "user.sql": _USER,
        "epilog": epilog,
        "munge.key": os.urandom(64).hex(),
    }
    for name, text in texts.items():
        path = folder / name
        path.write_text(text)
        path.chmod({"epilog": 0o755}.get(name, 0o600))
    for name in ("state", "database", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()


@contextmanager
def _inside(folder: Path, root: Path) -> Iterator[tuple[str, ...]]:
    """Words that run a command in `root`, in namespaces whose mounts end with the block."""
    ours = Path(gpu_bottleneck_exporter.__file__).parents[1]
    mounting = ("sh", "-ec", _MOUNTS, "sh", f"{root}", f"{folder}", f"{ours}")
    command = [*WITH_US, *with_mounts_of_its_own(), *mounting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "mounted\n"
        try:
            variables = (f"SLURM_CONF={HERE}/slurm.conf", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
            mounts = (require("nsenter", "util-linux"), f"--target={holder.pid}", "--mount")
            yield (*mounts, "chroot", f"{root}", "env", "-i", *variables)
        finally:
            holder.kill()
