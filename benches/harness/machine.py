"""The machine under the measurement: cores, CPU time, how busy everybody else was, and what it is."""
import ctypes
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

TICK = os.sysconf("SC_CLK_TCK")
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


def fail(text):
    sys.exit(f"error: {text}")


def run(command, **options):
    """The output of a command; ends the program if it fails."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: status {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


def two_cores():
    """The core of the target and the core of the initiator."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        fail("two cores are needed, one a side")
    return cores


def ahead():
    """Puts a process that is about to run ahead of everybody else's, if we may: on a shared machine that is most of the way to
    an idle one. With autogroups (sched(7)) a nice value counts within its session only, so it gets a session of its own. It ends with us,
    however we end."""
    os.setsid()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        with open("/proc/self/autogroup", "w") as group:
            group.write("-20")
    except OSError:
        pass


def pinned(core, *command):
    """The command on one core."""
    return [str(word) for word in ("taskset", "-c", core, *command)]


def process_seconds(pid):
    """User and system time of a process, its ended children included."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICK


def rss_bytes(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Others:
    """How much CPU everybody but the two measured processes used, as a part of one core."""

    def __init__(self, pid):
        self.pid, self.began = pid, time.monotonic()
        self.total, self.ours = self.busy(), self.mine()

    def mine(self):
        # The target, if it is a process, and our children, which end as they have been measured.
        return (process_seconds(self.pid) if self.pid else 0.0) + sum(os.times()[:4])

    @staticmethod
    def busy():
        user, nice, system, _idle, _wait, irq, soft, *_ = map(int, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:])
        return (user + nice + system + irq + soft) / TICK

    def percent(self):
        elapsed = max(time.monotonic() - self.began, 1e-3)
        return max(0.0, 100 * (self.busy() - self.total - (self.mine() - self.ours)) / elapsed)


def facts(root):
    """What a reader of the figures has to know."""
    model = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith(("model name", "Model"))]
    git = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"], text=True, capture_output=True)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "commit": git.stdout.strip() or None,
        "cpu": model[0] if model else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "rmem_max": read("/proc/sys/net/core/rmem_max"),
    }


def read(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return None
