"""A SLURM of one node on this machine, for the tests marked `slurm`, of Debian's packages.

    python papers/tests/support/slurm.py FOLDER      runs it in the foreground, and says how to reach it

Everything it writes is in the folder; it needs root, and no service of the machine. Jobs get what their commands ask
for, but no limit is enforced: processes are tracked by their group.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sbatch", "squeue", "sacct")
CPUS, MOST_IN_ARRAY = 4, 5


def lacking():
    """Why no SLURM can be started here; empty if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{absent[0]} is not installed"
    return "" if os.geteuid() == 0 else "SLURM's daemons are started as root"


def _port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _configure(home):
    host, ports = socket.gethostname().split(".")[0], [_port() for _ in range(4)]
    (home / "munge.key").write_bytes(secrets.token_bytes(128))
    (home / "users.sql").write_text("GRANT ALL ON *.* TO slurm@'127.0.0.1' IDENTIFIED BY 'slurm';\n")
    (home / "slurmdbd.conf").write_text(
        f"AuthType=auth/munge\nAuthInfo=socket={home}/munge.socket\nDbdHost=localhost\nDbdPort={ports[0]}\n"
        f"SlurmUser=root\nPidFile={home}/slurmdbd.pid\nLogFile={home}/slurmdbd.log\n"
        "StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStorageUser=slurm\nStoragePass=slurm\n"
        f"StoragePort={ports[1]}\n"
    )
    (home / "slurm.conf").write_text(
        f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmctldPort={ports[2]}\n"
        f"SlurmdPort={ports[3]}\nAuthType=auth/munge\nAuthInfo=socket={home}/munge.socket\nCredType=cred/munge\n"
        "ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nMpiDefault=none\nSwitchType=switch/none\n"
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n"
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n"
        f"AccountingStoragePort={ports[0]}\nAccountingStoragePass={home}/munge.socket\nJobAcctGatherType=jobacct_gather/none\n"
        f"StateSaveLocation={home}/state\nSlurmdSpoolDir={home}/spool\nSlurmctldPidFile={home}/slurmctld.pid\n"
        f"SlurmdPidFile={home}/slurmd.pid\nSlurmctldLogFile={home}/slurmctld.log\nSlurmdLogFile={home}/slurmd.log\n"
        f"KillWait=5\nSlurmdTimeout=10\nReturnToService=2\nMaxArraySize={MOST_IN_ARRAY}\nJobRequeue=1\n"
        "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL\nSchedulerParameters=batch_sched_delay=1,sched_interval=5\n"
        f"NodeName={host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=2000 State=UNKNOWN\n"
        f"PartitionName=usual Nodes={host} Default=YES MaxTime=60 State=UP PriorityTier=1\n"
        f"PartitionName=requeued Nodes={host} MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE\n"
        f"PartitionName=first Nodes={host} MaxTime=60 State=UP PriorityTier=2 PreemptMode=OFF\n"
    )
    for path in home.iterdir():
        path.chmod(0o600)
    return ports[1]


@contextlib.contextmanager
def running(home):
    """A SLURM below this folder; the environment that its commands need is set within the block.

    Yields a function that kills the node with all that runs there, and starts it again when SLURM has noticed.
    """
    home = Path(home)
    for name in ("", "state", "spool", "database"):
        (home / name).mkdir(mode=0o700, exist_ok=True, parents=True)
    database_port = _configure(home)
    before, started = os.environ.get("SLURM_CONF"), {}
    os.environ["SLURM_CONF"] = str(home / "slurm.conf")

    def start(name, *words):
        with (home / f"{name}.out").open("wb") as output:
            process = subprocess.Popen([shutil.which(name), *words], stdout=output, stderr=output, process_group=0)
        started[name] = process

    def wait(*command):
        for _ in range(300):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.2)
        logs = "\n".join(f"{path.name}: {path.read_text()[-600:]}" for path in sorted(home.glob("*.[lo][ou][gt]")))
        raise RuntimeError(f"{' '.join(command)} fails\n{logs}")

    def lose_node():
        said = subprocess.run(["scontrol", "listpids"], capture_output=True, text=True, check=True).stdout
        of_jobs = [int(line.split()[0]) for line in said.splitlines()[1:]]
        parents = [int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1]) for one in of_jobs]
        steps = [one for one in parents if Path(f"/proc/{one}/comm").read_text().startswith("slurmstepd")]
        for process in (started["slurmd"].pid, *steps, *of_jobs):  # nobody is left to report how a job ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        started["slurmd"].wait()
        wait("sh", "-c", "sinfo -h -o %T | grep -q down")
        start("slurmd", "-D")

    try:
        files = (f"--{kind}-file={home}/munge.{kind}" for kind in ("key", "pid", "log", "seed"))
        start("munged", "--foreground", "--force", f"--socket={home}/munge.socket", *files)
        own = (f"--datadir={home}/database", f"--socket={home}/database.socket")
        install = ["mariadb-install-db", "--no-defaults", "--user=root", "--skip-test-db", own[0]]
        subprocess.run(install, check=True, capture_output=True)
        local = ("--bind-address=127.0.0.1", f"--port={database_port}", f"--init-file={home}/users.sql")
        start("mariadbd", "--no-defaults", "--user=root", *own, *local, "--innodb-buffer-pool-size=64M")
        wait("mariadb-admin", "--no-defaults", own[1], "ping")
        start("slurmdbd", "-D")
        wait("sacctmgr", "-n", "list", "cluster")
        subprocess.run(["sacctmgr", "-i", "add", "cluster", "test"], check=True, capture_output=True)
        start("slurmctld", "-D", "-c")
        wait("scontrol", "ping")
        start("slurmd", "-D")
        wait("sh", "-c", "sinfo -h -o %T | grep -q idle")
        yield lose_node
    finally:
        subprocess.run(["scancel", "--me", "--signal=KILL"], capture_output=True, check=False)
        for process in reversed(started.values()):
            process.terminate()
        for process in reversed(started.values()):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        os.environ.pop("SLURM_CONF")
        os.environ |= {} if before is None else {"SLURM_CONF": before}


if __name__ == "__main__":
    with running(sys.argv[1]):
        print(f"export SLURM_CONF={Path(sys.argv[1]).resolve()}/slurm.conf", flush=True)
        ends = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # a second one must not leave daemons behind
        signal.sigwait(ends)
