"""The target on 2 x 100 GbE and 64 cores, from the cost of an I/O measured here: `scripts/bench model`.

Arithmetic where that does, seeded simulation where it does not (waiting within a shard, load of unequal channels). What
goes in is printed first; another bench.json gives other costs.
"""
import heapq
import json
import random

from .cases import BIG, R128, UDP
from .report import figure

PORTS, PORT_BITS = 2, 100e9
CORES, SOCKETS = 64, 2
# On the wire besides payload: preamble and gap 20, Ethernet with FCS 18, IPv4 20, UDP 8, BTH 12, ICRC 4.
FRAME = 82
RETH, RSP_IU = 16, 36
PATH_MTU = 4096
# A shard that is busier makes its commands wait: see the second table.
UTILISATION = 0.7
# src/target/limits.rs
SLOTS, SLOT_BYTES, CHUNK, CREDITS = 4096, 12 << 10, 256 << 10, 64
IDLE_CHANNEL = 16 << 10
BACKEND_US = 80  # an NVMe flash drive's read


def costs(path):
    """Fixed microseconds an I/O and microseconds a byte, from the median target CPU of 4k at QD128 and of 128k."""
    with open(path) as file:
        rows = json.load(file)["rows"]
    small, large = figure(rows, UDP, R128.name, "cpu_us"), figure(rows, UDP, BIG.name, "cpu_us")
    if not small or not large:
        raise RuntimeError(f"{path} has not both {R128.name} and {BIG.name} of {UDP}")
    per_byte = (large - small) / ((128 - 4) << 10)
    return small - per_byte * 4096, per_byte


def line_rate(size):
    """Reads a second that fill all ports, by the busier direction: data and responses, out of the target."""
    packets = -(-size // PATH_MTU)
    out = size + packets * (FRAME + RETH) + FRAME + RSP_IU
    return PORTS * PORT_BITS / 8 / out


def waits(service_us, load, rng, count=200_000):
    """Time from arrival to answer in a shard that serves one command after the other: Poisson arrivals, fixed service."""
    clock, free, times = 0.0, 0.0, []
    for _ in range(count):
        clock += rng.expovariate(load / service_us)
        free = max(free, clock) + service_us
        times.append(free - clock)
    times.sort()
    return [times[int(count * q)] for q in (0.5, 0.99, 0.999)]


def hottest(channels, shards, active, rng, tries=200):
    """Load of the busiest shard as a multiple of the mean: channels go to the shard with the fewest and stay; a part of
    them is active, and an active one has a load between none and twice the mean."""
    total = 0.0
    for _ in range(tries):
        heap, load = [(0, shard) for shard in range(shards)], [0.0] * shards
        for _ in range(channels):
            count, shard = heapq.heappop(heap)
            heapq.heappush(heap, (count + 1, shard))
            if rng.random() < active:
                load[shard] += rng.random()
        mean = sum(load) / shards
        total += max(load) / mean if mean else 1.0
    return total / tries


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def run(path):
    fixed, per_byte = costs(path)
    rng = random.Random(5)
    cost = lambda size: fixed + per_byte * size  # noqa: E731
    print(f"Target CPU an I/O: {fixed:.2f} us and {per_byte * 1e3:.3f} ns a byte ({per_byte * 4096:.2f} us for 4 KiB), from {path.parent.name}/{path.name}.\n")

    rows = []
    for size in (4096, 8192, 65536, 131072):
        iops = line_rate(size)
        shards = iops * cost(size) / 1e6 / UTILISATION
        rows.append((f"{size >> 10} KiB", f"{iops / 1e6:.2f} M", f"{cost(size):.2f} us", f"{iops * cost(size) / 1e6:.1f}", f"{shards:.1f}",
                     "fits" if shards <= CORES else f"{CORES} cores give {100 * CORES / shards:.0f} %"))
    print(f"Reads that fill {PORTS} x {PORT_BITS / 1e9:.0f} Gb/s, and the cores for them (back end not counted):\n")
    table(["I/O", "I/Os a second at line rate", "CPU an I/O", "cores at 100 %", f"shards at {UTILISATION:.0%}", f"of {CORES}"], rows)

    print("Time in a shard, 4 KiB, by how busy it is (Poisson arrivals; batches make it cheaper, not dearer):\n")
    table(["busy", "p50", "p99", "p99.9"],
          [(f"{load:.0%}", *(f"{t:.1f} us" for t in waits(cost(4096), load, rng))) for load in (0.5, 0.7, 0.8, 0.9, 0.95)])

    shards = min(CORES - 4, -(-int(line_rate(4096) * cost(4096) / 1e4 / UTILISATION) // 100))
    print(f"Load of the hottest of {shards} shards as a multiple of the mean, since a channel stays where it is:\n")
    table(["channels", "all active", "a quarter active"],
          [(channels, *(f"{hottest(channels, shards, active, rng):.2f}" for active in (1.0, 0.25)))
           for channels in (shards, 4 * shards, 16 * shards, 64 * shards)])

    print(f"Memory ({SLOTS} receive slots of {SLOT_BYTES >> 10} KiB and {CHUNK >> 10} KiB chunks a shard; back end {BACKEND_US} us):\n")
    rows = []
    for size in (4096, 131072):
        rate = line_rate(size) / shards
        flying = rate * (BACKEND_US + cost(size) / (1 - UTILISATION)) / 1e6
        rows.append((f"{size >> 10} KiB", f"{rate / 1e3:.0f} k", f"{flying:.0f}", f"{flying * CHUNK / 2**20:.0f} MiB", f"{flying * size / 2**20:.1f} MiB",
                     f"{shards * (flying * CHUNK + SLOTS * SLOT_BYTES) / 2**30:.1f} GiB"))
    table(["I/O", "I/Os a shard", "in flight (Little)", "chunks for them", "of which data", f"all {shards} shards with slots"], rows)
    full = shards * (SLOTS // (CREDITS + 1))
    print(f"The slots promise {CREDITS} credits to {SLOTS // (CREDITS + 1)} channels a shard, {full} in all; an idle channel costs {IDLE_CHANNEL >> 10} KiB, "
          f"so {full} cost {full * IDLE_CHANNEL / 2**20:.0f} MiB.\n")

    data = PORTS * PORT_BITS / 8 / 1e9
    print("Memory traffic at line rate, GB/s (a read: the device writes, the CRC and the kernel's copy read, the copy writes, the NIC reads):\n")
    table(["provider", "crossings of a byte", "GB/s", f"a socket of {SOCKETS}"],
          [(name, n, f"{n * data:.0f}", f"{n * data / SOCKETS:.0f}") for name, n in (("soft (UDP)", 4), ("adapter (verbs)", 2))])
