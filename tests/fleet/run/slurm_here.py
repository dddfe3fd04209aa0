"""A Slurm cluster on this machine: a controller and a daemon for each of some virtual nodes; its GPUs are files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from backend_trials import wait_for

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2{more}
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
GresTypes=gpu,slot
"""


def why_no_slurm() -> str | None:
    """Why there can be no Slurm cluster on this machine; None if there can."""
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"needs {', '.join(missing)}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "needs root, to start the daemons of Slurm"


@contextmanager
def running_slurm(
    folder: Path, gpus: Sequence[int], cpus: int = 8, scheduling: Sequence[str] = ()
) -> Iterator[None]:
    """Run a cluster whose nodes have so many GPUs of type ``local``, with two slots each; ``SLURM_CONF`` says where.

    Parameters
    ----------
    scheduling : more options of ``SchedulerParameters``.
    """
    ports = _free_ports(1 + len(gpus))
    more = "".join(f",{option}" for option in scheduling)
    conf = _CONF.format(host=socket.gethostname(), port=ports[0], folder=folder, more=more)
    for node, (count, port) in enumerate(zip(gpus, ports[1:], strict=True)):
        conf += (
            f"NodeName=node{node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
            f"RealMemory=8000 Gres=gpu:local:{count},slot:{2 * count}\n"
        )
    conf += "PartitionName=main Nodes=ALL Default=YES State=UP\n"
    (folder / "slurm.conf").write_text(conf)
    gres = [
        f"NodeName=node{node} Name=gpu Type=local File={folder}/gpu[0-{count - 1}]\n"
        for node, count in enumerate(gpus)
    ]
    (folder / "gres.conf").write_text("".join(gres))
    (folder / "state").mkdir()
    for number in range(max(gpus)):
        (folder / f"gpu{number}").touch()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        files = {
            "key-file": key,
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
        }
        options = [
            f"--{name}={folder / file}" for name, file in (files | {"seed-file": "munge.seed"}).items()
        ]
        subprocess.run(["munged", "--force", *options], check=True, capture_output=True)
        subprocess.run(["slurmctld"], check=True, capture_output=True)
        for node in range(len(gpus)):
            subprocess.run(["slurmd", "-N", f"node{node}"], check=True, capture_output=True)
        wait_for(lambda: _sinfo().split() == ["idle"] * len(gpus))
        yield
    finally:
        for pid_file in [*folder.glob("slurm*.pid"), folder / "munged.pid"]:
            _end(pid_file)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before


def kill_node(folder: Path, node: int, away_s: float) -> None:
    """Kill the daemon of a node, and start it again after a while, as systemd does."""
    psutil.Process(int((folder / f"slurmd-node{node}.pid").read_text())).kill()
    time.sleep(away_s)
    subprocess.run(["slurmd", "-N", f"node{node}"], check=True, capture_output=True)


def lose_node(folder: Path, node: int) -> None:
    """Kill the daemon of a node, and let Slurm note at once that the node is down, as it does after some minutes."""
    psutil.Process(int((folder / f"slurmd-node{node}.pid").read_text())).kill()
    subprocess.run(
        ["scontrol", "update", f"nodename=node{node}", "state=down", "reason=test"],
        check=True,
        capture_output=True,
    )


def give_back_node(node: int) -> None:
    """Start such a daemon again."""
    subprocess.run(["slurmd", "-N", f"node{node}"], check=True, capture_output=True)


def _sinfo() -> str:
    return subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True).stdout


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _end(pid_file: Path) -> None:
    """End a daemon, and wait for that; nobody may be there to bury it."""
    with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
        process = psutil.Process(int(pid_file.read_text()))
        process.terminate()
        wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
