"""What else there is: nbdkit, qemu-nbd and tgtd from Debian, driven by fio; SPDK's NVMe/TCP target where it is built."""
import json
import os
import pathlib
import re
import socket
import subprocess
import time

from .machine import ahead, run
from .systems import System, fio


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(system, port):
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if system.process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"{system.name} did not start:\n{system.what_it_said()}")


class Nbd(System):
    """An NBD server over TCP for each back end: the null one from the start, a file's when it is asked for."""
    backends = ("null", "tmpfs", "ext4")

    def start(self):
        self.serve("null")
        return self

    def serve(self, backend):
        self.backend, self.port = backend, free_port()
        self.launch(self.command(backend), self.bench.work / f"log-{self.name.split()[0]}")
        wait_for_port(self, self.port)

    def measure(self, case, seconds):
        if case.backend != self.backend:
            self.stop()
            self.serve(case.backend)
        return super().measure(case, seconds)

    def load(self, case, seconds):
        figures = fio(self.bench, case, seconds, "--ioengine=nbd", f"--uri=nbd://127.0.0.1:{self.port}", shared="256m")
        del figures["fio_cpu_us"]
        return figures


class Nbdkit(Nbd):
    name = "nbdkit"

    def command(self, backend):
        plugin = ["null", "1G"] if backend == "null" else ["file", self.bench.file(backend)]
        return ["nbdkit", "-f", "-i", "127.0.0.1", "-p", self.port, *plugin]


class QemuNbd(Nbd):
    name = "qemu-nbd"

    def command(self, backend):
        if backend == "null":
            image = ["--image-opts", "driver=null-co,size=1G,read-zeroes=on"]
        else:
            # No write goes through the page cache of a file that is measured with O_DIRECT elsewhere.
            direct = ["--cache=none", "--aio=io_uring"] if self.bench.direct(backend) else ["--cache=writeback"]
            image = ["-f", "raw", *direct, self.bench.file(backend)]
        return ["qemu-nbd", "-b", "127.0.0.1", "-p", self.port, "--persistent", "--shared=4", *image]


class Tgtd(System):
    """tgtd over iSCSI, driven by fio's libiscsi engine, which Debian's fio lacks and scripts/fio builds."""
    name, backends = "tgtd iSCSI", ("null", "tmpfs", "ext4")
    IQN = "iqn.2026-01.srpoll.bench"

    def __init__(self, bench):
        super().__init__(bench)
        # Built before anything is measured.
        bench.engine("libiscsi")

    def start(self):
        self.port, self.control = free_port(), 5000 + os.getpid() % 20000
        self.launch(["tgtd", "-f", "-C", self.control, "--iscsi", f"portal=127.0.0.1:{self.port}"], self.bench.work / "log-tgtd")
        wait_for_port(self, self.port)
        self.admin("--mode", "target", "--op", "new", "--tid", 1, "-T", self.IQN)
        for lun, backend in enumerate(self.backends, 1):
            store = ["--bstype", "null", "-b", "null"] if backend == "null" else ["--bstype", "rdwr", "-b", self.bench.file(backend)]
            self.admin("--mode", "logicalunit", "--op", "new", "--tid", 1, "--lun", lun, *store)
        self.admin("--mode", "target", "--op", "bind", "--tid", 1, "-I", "ALL")
        return self

    def admin(self, *words):
        run(["tgtadm", "-C", self.control, "--lld", "iscsi", *words])

    def load(self, case, seconds):
        lun = self.backends.index(case.backend) + 1
        figures = fio(self.bench, case, seconds, f"--ioengine=external:{self.bench.engine('libiscsi')}",
                      f"--filename=iscsi\\://127.0.0.1\\:{self.port}/{self.IQN}/{lun}", shared="256m")
        del figures["fio_cpu_us"]
        return figures


def memory_of_dpdk(pages, otherwise_mib):
    """Options for DPDK's memory: huge pages of 2 MiB if so many are free and can be had (DPDK wants a hugetlbfs), else ordinary ones."""
    free = int(re.search(r"^HugePages_Free:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)[1])
    mounted = any(line.split()[2] == "hugetlbfs" for line in pathlib.Path("/proc/mounts").read_text().splitlines())
    return [] if mounted and free >= pages else ["--no-huge", "-s", str(otherwise_mib)]


class Spdk(System):
    """SPDK's NVMe/TCP target and its own polled perf tool, from the tree in SPDK_DIR."""
    name, backends = "SPDK NVMe/TCP", ("null", "malloc", "tmpfs", "ext4")
    NQN = "nqn.2026-01.io.srpoll:bench"

    def __init__(self, bench):
        super().__init__(bench)
        self.tree = pathlib.Path(os.environ["SPDK_DIR"])
        self.rpc_socket = bench.work / "spdk.sock"
        self.tool = next((path for path in (self.tree / "build/bin/spdk_nvme_perf", self.tree / "build/examples/perf") if path.exists()), None)
        if not (self.tree / "build/bin/nvmf_tgt").exists() or self.tool is None:
            raise RuntimeError(f"SPDK_DIR={self.tree} holds no build/bin/nvmf_tgt and spdk_nvme_perf")

    def rpc(self, method, *words):
        return run(["python3", self.tree / "scripts/rpc.py", "-s", self.rpc_socket, method, *words])

    def start(self):
        self.port = free_port()
        self.launch([self.tree / "build/bin/nvmf_tgt", "-m", f"[{self.bench.cores[0]}]", "-r", self.rpc_socket, *memory_of_dpdk(512, 1024)],
                    self.bench.work / "log-spdk")
        for _ in range(200):
            if self.rpc_socket.exists():
                break
            if self.process.poll() is not None:
                raise RuntimeError(f"nvmf_tgt did not start:\n{self.what_it_said()}")
            time.sleep(0.1)
        self.rpc("nvmf_create_transport", "-t", "TCP")
        self.rpc("bdev_null_create", "null", 1024, 512)
        self.rpc("bdev_malloc_create", "-b", "malloc", 256, 512)
        names = ["null", "malloc"]
        for backend in ("tmpfs", "ext4"):
            try:
                self.rpc("bdev_uring_create", self.bench.file(backend), backend, 512)
            except RuntimeError:
                self.rpc("bdev_aio_create", self.bench.file(backend), backend, 512)
            names.append(backend)
        # One subsystem each, so that a run has its namespace alone.
        for name in names:
            self.rpc("nvmf_create_subsystem", f"{self.NQN}-{name}", "-a", "-s", f"SRPOLL{name}")
            self.rpc("nvmf_subsystem_add_ns", f"{self.NQN}-{name}", name)
            self.rpc("nvmf_subsystem_add_listener", f"{self.NQN}-{name}", "-t", "TCP", "-a", "127.0.0.1", "-s", self.port)
        return self

    def cpu_seconds(self):
        reading = json.loads(self.rpc("framework_get_reactors"))
        return sum(reactor["busy"] for reactor in reading["reactors"]) / reading["tick_rate"]

    def load(self, case, seconds):
        size = {"4k": 4096, "128k": 131072}[case.bs]
        text = run((self.tool, "-q", case.qd, "-o", size, "-w", case.rw, "-t", seconds, "-c", f"[{self.bench.cores[1]}]", "-L", "-P", case.channels,
                    *memory_of_dpdk(256, 512), "-r", f"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{self.port} subnqn:{self.NQN}-{case.backend}"), preexec_fn=ahead)
        total = re.search(r"^Total\s*:\s*([\d.]+)\s+([\d.]+)", text, re.MULTILINE)
        at = {float(percent): float(us) for percent, us in re.findall(r"^\s*([\d.]+)%\s*:\s*([\d.]+)us", text, re.MULTILINE)}
        iops = float(total[1])
        return {"iops": iops, "mbps": iops * size / 1e6, "ios": iops * seconds, "p50": at.get(50.0), "p99": at.get(99.0), "p99.9": at.get(99.9)}


# Debian's packages of each.
PEERS = {"nbdkit": (Nbdkit, ["nbdkit", "fio"]), "qemu-nbd": (QemuNbd, ["qemu-utils", "fio"]), "tgtd": (Tgtd, ["tgt", "fio", "libiscsi-dev"])}
