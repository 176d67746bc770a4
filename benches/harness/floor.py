"""What the kernel takes for our datagrams, and the CRC of their data, with nothing else: benches/floor.rs."""
import json

from .cases import BIG, FLOOR, R1, R32, R128, W32
from .machine import Others, ahead, run


def build(root):
    """The program of benches/floor.rs."""
    built = run(["bash", "-c", ". scripts/lib.sh && use_rust && cargo bench --quiet --bench floor --no-run --message-format=json"], cwd=root)
    entries = map(json.loads, built.splitlines())
    programs = [entry["executable"] for entry in entries if entry.get("executable") and entry["target"]["name"] == "floor"]
    if not programs:
        raise RuntimeError("cargo built no benches/floor.rs")
    return programs[0]


class Floor:
    """Bare UDP between the two cores: no target and no initiator, only their datagrams."""
    name = FLOOR

    def __init__(self, bench):
        self.bench = bench

    def supports(self, case):
        return case in (R1, R32, R128, W32, BIG)

    def start(self):
        return self

    def pause(self):
        pass

    resume = stop = pause

    def measure(self, case, _seconds):
        """The rate is that of a core which does nothing else; p50, at depth 1, is the initiator's wait and both CRCs."""
        others = Others(None)
        cores = ",".join(map(str, self.bench.cores))
        figures = json.loads(run([self.bench.floor, "--json", "--cores", cores, case.name], preexec_fn=ahead))
        cpu_us = figures["target_us"] + figures["crc_us"]
        block = int(case.bs.removesuffix("k")) << 10
        return {"iops": 1e6 / cpu_us, "mbps": block / cpu_us, "cpu_us": cpu_us, "other_percent": others.percent(),
                "p50": figures["round_us"] + 2 * figures["crc_us"] if case == R1 else None}
