"""A Slurm of its own for tests: a controller and several nodes on one machine.

Every node has its own names of host and processes (namespaces of Linux), so that killing a node
kills everything on it at once, as a power failure does.  The daemons are those of Debian; they keep
all that they write in one directory.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from tools.testing.as_user import ROOT

HIGH, LOW = "high", "low"       # partitions: jobs of the first preempt those of the second
SMALL_MEGABYTES = 512
REFUSAL_SECONDS = 3
NODE_SCRIPT = "hostname {name} && mount -t tmpfs tmpfs /dev/shm && slurmd -D -N {name} -f {conf}; exit"
NAMESPACES = ["unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]

CONFIGURATION = """\
ClusterName=kablate
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=25
KillWait=20
MpiDefault=none
GresTypes=gpu
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MaxArraySize={largest_array}
"""
NODE = "NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=1000 Gres=gpu:1\n"
# Slurm counts device files; it does not look whether they are GPUs.
GPUS = "AutoDetect=off\nName=gpu File=/dev/null\n"
PARTITIONS = f"""\
PartitionName={LOW} Nodes=ALL Default=YES PriorityTier=1
PartitionName={HIGH} Nodes=ALL PriorityTier=9 PreemptMode=OFF
"""


def missing():
    """Why there can be no cluster here; None if there can."""
    if os.getuid() != 0:
        return "only root can start the daemons of Slurm"
    if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode:
        return "this machine does not allow namespaces"
    setup = subprocess.run(["bash", ROOT / "tools/make/setup.sh", "slurm"], text=True,
                           capture_output=True, check=False)
    return setup.stderr.strip().replace("\n", "; ") if setup.returncode else None


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def until(condition, seconds, what):
    """Waits for it; returns what it returned."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s: {what}")
        time.sleep(0.3)


class Cluster:
    def __init__(self, nodes=4, largest_array=1001):
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="kablate-slurm-"))
        self.names = [f"n{i + 1}" for i in range(nodes)]
        self.conf = self.place / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self.daemons = {}
        self.waiting = {}       # since when a task waits that was queued again
        self.small = self.place / "small"       # a file system that all nodes see; it gets full
        (self.place / "state").mkdir()
        self.configure(free_ports(nodes + 1), largest_array)

    def configure(self, ports, largest_array):
        text = CONFIGURATION.format(host=socket.gethostname(), port=ports[0], place=self.place,
                                    largest_array=largest_array)
        text += "".join(NODE.format(name=name, port=port)
                        for name, port in zip(self.names, ports[1:]))
        self.conf.write_text(text + PARTITIONS)
        (self.place / "gres.conf").write_text(GPUS)

    # ------------------------------------------------------------ daemons

    def start(self):
        self.small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_MEGABYTES}m", "tmpfs", self.small],
                       check=True)
        self.start_munge()
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        until(lambda: len(self.nodes("idle")) == len(self.names), 60, f"no idle nodes: {self.tell()}")

    def launch(self, name, *command):
        with open(self.place / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL,
                                                  stdout=out, stderr=out, start_new_session=True)

    def start_munge(self):
        key = self.place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {option: self.place / f"munge.{option.split('-')[0]}"
                 for option in ("socket", "pid-file", "log-file", "seed-file")}
        self.launch("munged", "munged", "--foreground", "--force", f"--key-file={key}",
                    *(f"--{option}={path}" for option, path in files.items()))
        until((self.place / "munge.socket").exists, 20, f"no munge: {self.tell()}")

    def start_controller(self):
        self.launch("slurmctld", "slurmctld", "-D", "-f", self.conf)
        until(lambda: self.command("scontrol", "ping").returncode == 0, 60,
              f"no controller: {self.tell()}")

    def start_node(self, name):
        self.launch(name, *NAMESPACES, "sh", "-c", NODE_SCRIPT.format(name=name, conf=self.conf))

    def kill(self, name, number=signal.SIGKILL):
        """A node with all that runs there, or another daemon; by default without a warning."""
        daemon = self.daemons.pop(name)
        os.killpg(daemon.pid, number)
        daemon.wait(60)

    def stop_controller(self):
        """One that is killed at once would lose what it received in its last seconds."""
        self.kill("slurmctld", signal.SIGTERM)

    def stop(self):
        for name in reversed(list(self.daemons)):
            self.kill(name)
        subprocess.run(["umount", "-l", self.small], check=False)
        shutil.rmtree(self.place, ignore_errors=True)

    def tell(self):
        return "\n".join(path.read_text(errors="replace")[-2000:]
                         for path in (*self.place.glob("*.out"), self.place / "slurmctld.log")
                         if path.exists())

    # ------------------------------------------------------------ questions and jobs

    def command(self, *words):
        return subprocess.run(words, env=self.environment, text=True, capture_output=True, check=False)

    def nodes(self, state):
        said = self.command("sinfo", "--noheader", "--Node", "--format=%N %t", f"--partition={LOW}")
        return [line.split()[0] for line in said.stdout.splitlines() if line.split()[1] == state]

    def tasks(self):
        """(task, state, node, reason) of all that wait or run."""
        said = self.command("squeue", "--noheader", "--array", "--format=%i|%T|%N|%r")
        return [line.strip().split("|") for line in said.stdout.splitlines() if line.strip()]

    def is_idle(self):
        said = self.command("squeue", "--noheader")
        return said.returncode == 0 and not said.stdout.strip()

    def hurry(self):
        """Slurm lets a task that was queued again wait for two minutes, and we for some seconds.

        For a second a node refuses a task that it has just ended, and Slurm then gives the task up.
        """
        now = time.monotonic()
        self.waiting = {task: self.waiting.get(task, now) for task, state, _, reason in self.tasks()
                        if state == "PENDING" and reason == "BeginTime"}
        for task, since in self.waiting.items():
            if now - since > REFUSAL_SECONDS:
                self.command("scontrol", "update", f"JobId={task}", "StartTime=now")

    def preempt(self, node, seconds):
        done = self.command("sbatch", "--parsable", f"--partition={HIGH}", f"--nodelist={node}",
                            "--output=/dev/null", f"--wrap=sleep {seconds}")
        assert done.returncode == 0, done.stderr
