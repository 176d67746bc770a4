"""What is measured: srpoll over its transports, and fio's own io_uring as the floor below it.

A system is started once, pinned to the target's core, and stopped by SIGSTOP between its turns: one that spins must
not share the core with the next. `measure(case, seconds)` gives one run's figures: iops, mbps, p50, p99, p99.9 in
microseconds, cpu_us of the target an I/O, and other_percent, what everybody else took of a core meanwhile.
"""
import json
import re
import signal
import subprocess
import time

from .cases import R1, R32, SINGLY, W32, Case
from .machine import Others, ahead, pinned, process_seconds, rss_bytes, run

PERCENTILES = ["p50", "p99", "p99.9"]


class System:
    """One target process; what it is driven with is the subclass's."""
    name = ""
    backends = ()
    started = False

    def __init__(self, bench):
        self.bench, self.process = bench, None

    def supports(self, case):
        return case.backend in self.backends

    def launch(self, command, log, **options):
        self.log = open(log, "w+")
        self.process = subprocess.Popen(pinned(self.bench.cores[0], *command), stdin=subprocess.DEVNULL, preexec_fn=ahead,
                                        stdout=subprocess.PIPE if options.pop("pipe", False) else self.log, stderr=self.log, text=True, **options)

    def what_it_said(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()[-1500:]

    def cpu_seconds(self):
        return process_seconds(self.process.pid)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def measure(self, case, seconds):
        others, before = Others(self.process.pid), self.cpu_seconds()
        figures = self.load(case, seconds)
        figures["cpu_us"] = (self.cpu_seconds() - before) / max(figures.pop("ios"), 1) * 1e6
        figures["other_percent"] = others.percent()
        return figures

    def stop(self):
        if self.process and self.process.poll() is None:
            self.resume()
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Srpoll(System):
    """A target with all back ends as LUNs, spinning on its core; `srpoll perf` on the other."""
    backends = ("null", "malloc", "tmpfs", "ext4")

    def __init__(self, bench, transport, kind="", host=1):
        super().__init__(bench)
        self.name, self.transport = f"srpoll {transport}{kind and f', {kind}'}", transport
        self.address, self.local = bench.net(host), bench.net(host + 1)
        self.place = lambda what: bench.work / f"{what}-{transport}{kind}"
        self.rpc_socket, self.shm_socket = self.place("rpc"), self.place("shm")

    def start(self, idle="spin"):
        bench = self.bench
        way = ["--soft", self.address] if self.transport == "udp" else ["--shm", self.shm_socket]
        files = [word for name in ("tmpfs", "ext4") for word in ("--lun", f"{self.backends.index(name)}=uring:{bench.file(name)}")]
        self.launch([bench.srpoll, "serve", *way, "--lun", "0=null:1G", "--lun", "1=malloc:256M", *files, "--cores", bench.cores[0],
                     "--idle", idle, "--rpc", self.rpc_socket, "--state", self.place("state")],
                    self.place("log"), pipe=True)
        for line in self.process.stdout:
            if line.strip() == "ready":
                return self
        self.process.wait()
        raise RuntimeError(f"{self.name} did not start:\n{self.what_it_said()}")

    def rpc(self, method):
        return json.loads(run([self.bench.srpoll, "rpc", "--rpc", self.rpc_socket, method]))

    def cpu_seconds(self):
        """Of the turns that found work, kernel time included: what spinning costs is nobody's I/O."""
        reading = self.rpc("framework_get_reactors")
        return sum(reactor["busy"] for reactor in reading["reactors"]) / reading["tick_rate"]

    def counters(self):
        names = ["sent_packets", "send_calls", "recv_packets", "recv_datagrams"]
        return [sum(shard["counters"].get(name, 0) for shard in self.rpc("srp_get_stats")["shards"]) for name in names]

    def way(self):
        if self.transport == "shm":
            return ["--shm", self.shm_socket]
        return ["--target", self.address, "--local", self.local]

    def perf(self, case, *more, idle="spin"):
        return json.loads(run((
            self.bench.srpoll, "perf", *self.way(), "--lun", self.backends.index(case.backend), "--rw", case.rw, "--bs", case.bs,
            "--channels", case.channels, "--overwrite", "--cores", self.bench.cores[1], "--idle", idle, "--json", *more), preexec_fn=ahead))

    def load(self, case, seconds):
        counted = self.counters()
        out = self.perf(case, "--qd", case.qd, "--time", f"{seconds}s", "--batch", case.batch)
        if out["errors"]:
            raise RuntimeError(f"{self.name}: {out['errors']} I/Os failed")
        sent, sends, received, receives = (now - then for now, then in zip(self.counters(), counted))
        return {"iops": out["iops"], "mbps": out["mbps"], "ios": out["ios"], "initiator_cpu_us": out["cpu_us_per_io"],
                "tx_a_call": sent / max(sends, 1), "rx_a_call": received / max(receives, 1),
                **{p: out["lat_us"].get(p) for p in PERCENTILES}}

    def stop(self):
        super().stop()
        if self.process.returncode != 0:
            raise RuntimeError(f"{self.name} did not stop cleanly:\n{self.what_it_said()}")


def fio(bench, case, seconds, *engine, shared=None):
    """One run of fio on the initiator's core."""
    text = run(pinned(bench.cores[1], "fio", "--name=run", *engine, f"--rw={case.rw}", f"--bs={case.bs}", f"--iodepth={case.qd}",
                      "--thread", "--time_based", f"--runtime={seconds}", "--randrepeat=0", "--norandommap", "--percentile_list=50:99:99.9",
                      "--output-format=json", *([f"--size={shared}"] if shared else [])), preexec_fn=ahead)
    job = json.loads(text[text.index("{"):])["jobs"][0]  # some engines speak first
    if job["error"]:
        raise RuntimeError(f"fio: error {job['error']}")
    side = job["write" if "write" in case.rw else "read"]
    at = side["clat_ns"].get("percentile", {})
    return {"iops": side["iops"], "mbps": side["bw_bytes"] / 1e6, "ios": side["total_ios"],
            "fio_cpu_us": (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1e3 / max(side["total_ios"], 1),
            **{p: at[key] / 1000 if (key := f"{float(p[1:]):.6f}") in at else None for p in PERCENTILES}}


class SrpollSingly(Srpoll):
    """The same target and an initiator that cannot batch, as rdma_rxe: one packet a send and a receive, no checksums."""

    def __init__(self, bench):
        super().__init__(bench, "udp", SINGLY.removeprefix("srpoll udp, "), 21)

    def supports(self, case):
        return case in (R1, R32, W32)

    def perf(self, case, *more, idle="spin"):
        return super().perf(case, "--singly", *more, idle=idle)


class SrpollFio(Srpoll):
    """The same target, driven by fio through our engine."""

    def __init__(self, bench, transport):
        super().__init__(bench, transport, "fio", 11)
        # Built before anything is measured.
        bench.engine()

    def load(self, case, seconds):
        way = [f"--target=shm:{self.shm_socket}"] if self.transport == "shm" else [f"--target={self.address}", f"--local={self.local}"]
        figures = fio(self.bench, case, seconds, f"--ioengine=external:{self.bench.engine()}", *way,
                      f"--lun={self.backends.index(case.backend)}", f"--channels={case.channels}")
        del figures["fio_cpu_us"]
        return figures


class RawFile:
    """fio's own io_uring on the file, without a target: what the back end itself can do. Its CPU is fio's."""
    name, backends = "fio io_uring", ("tmpfs", "ext4")

    def __init__(self, bench):
        self.bench = bench

    def supports(self, case):
        return case.backend in self.backends

    def start(self):
        return self

    def pause(self):
        pass

    resume = stop = pause

    def measure(self, case, seconds):
        others = Others(None)
        direct = 1 if self.bench.direct(case.backend) else 0
        figures = fio(self.bench, case, seconds, "--ioengine=io_uring", f"--direct={direct}", f"--filename={self.bench.file(case.backend)}")
        figures["cpu_us"] = figures.pop("fio_cpu_us")
        del figures["ios"]
        figures["other_percent"] = others.percent()
        return figures


def idle_channel_bytes(bench, channels=32):
    """Resident memory of the target that a channel costs which carries (nearly) nothing."""
    target = Srpoll(bench, "udp").start(idle="sleep")
    try:
        case = Case("idle", "null", "randread", "4k", channels, channels=channels)
        target.perf(Case("one", "null", "randread", "4k", 1), "--qd", 1, "--ios", 1000, idle="sleep:50us")
        before = rss_bytes(target.process.pid)
        load = subprocess.Popen([str(word) for word in (
            bench.srpoll, "perf", *target.way(), "--rw", "randread", "--bs", "4k", "--qd", channels, "--channels", channels,
            "--rate", 1, "--time", "3s", "--idle", "sleep:50us", "--json")], stdout=subprocess.PIPE, text=True)
        most = 0
        while load.poll() is None:
            most = max(most, rss_bytes(target.process.pid))
            try:
                load.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                pass
        if load.returncode != 0:
            raise RuntimeError("the idle session failed")
        said = re.search(r"idle_channel_bytes=(\d+)", target.place("log").read_text())
        return {"measured": (most - before) / case.channels, "by_design": int(said[1]) if said else None}
    finally:
        target.stop()


def idle_policy(bench, transport="udp"):
    """The target under --idle sleep: its CPU without a session, and the latency of I/Os a tenth of a second apart."""
    target = Srpoll(bench, transport).start(idle="sleep")
    try:
        time.sleep(0.5)
        before = process_seconds(target.process.pid)
        time.sleep(3)
        percent = 100 * (process_seconds(target.process.pid) - before) / 3
        out = target.perf(Case("first", "null", "randread", "4k", 1), "--qd", 1, "--rate", 10, "--time", "3s")
        return {"cpu_percent": percent, "first_io_us": out["lat_us"]["p50"], "first_io_p99_us": out["lat_us"]["p99"]}
    finally:
        target.stop()
