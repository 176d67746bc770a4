"""Workloads, and the goals that issue 5 set for them."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    backend: str
    rw: str
    bs: str
    qd: int
    channels: int = 1
    batch: int = 1


R1 = Case("4k randread QD1", "null", "randread", "4k", 1)
R32 = Case("4k randread QD32", "null", "randread", "4k", 32)
R128 = Case("4k randread QD128", "null", "randread", "4k", 128)
W32 = Case("4k randwrite QD32", "null", "randwrite", "4k", 32)
BIG = Case("128k read QD8", "null", "read", "128k", 8)
TMPFS = Case("tmpfs 4k randread QD32", "tmpfs", "randread", "4k", 32)
EXT4 = Case("ext4 4k randread QD32", "ext4", "randread", "4k", 32)
CHANNELS = [Case(f"4k randread QD64, {n} channels", "null", "randread", "4k", 64, channels=n) for n in (1, 2, 4, 8, 16, 32, 64)]
DEPTHS = [Case(f"4k randread QD{n}", "null", "randread", "4k", n) for n in (1, 2, 4, 8, 16, 32, 64, 128)]

MAIN = [R1, R32, R128, W32, BIG]
FILES = [Case("malloc 4k randread QD32", "malloc", "randread", "4k", 32), TMPFS, EXT4]

UDP, SHM, SINGLY, SPDK, RAW, FLOOR = "srpoll udp", "srpoll shm", "srpoll udp, singly", "SPDK NVMe/TCP", "fio io_uring", "bare UDP"


@dataclasses.dataclass(frozen=True)
class Goal:
    """`unit` of `figure` of a system on a case: at most, or at least, `bound`; and, if a peer was measured in the same
    run, at most or at least `ratio` times the peer's. With neither it is reported."""
    text: str
    system: str
    case: Case
    figure: str
    unit: str
    bound: float | None
    most: bool = True
    peer: str | None = None
    ratio: float | None = None
    scale: float = 1.0


GOALS = [
    Goal("4k randread QD32, null, UDP: target CPU an I/O", UDP, R32, "cpu_us", "us", 0.8, peer=SPDK, ratio=0.85),
    Goal("4k randread QD128, null, UDP: target CPU an I/O", UDP, R128, "cpu_us", "us", 0.72, peer=SPDK),
    Goal("4k randread QD1, null, UDP: p50", UDP, R1, "p50", "us", 8.5, peer=SPDK, ratio=2 / 3),
    Goal("4k randwrite QD32, null, UDP: target CPU an I/O", UDP, W32, "cpu_us", "us", 1.0, peer=SPDK),
    Goal("128k read QD8, null, UDP", UDP, BIG, "mbps", "GB/s", 7.0, most=False, peer=SPDK, scale=1e-3),
    Goal("shared memory, 4k randread QD32, null", SHM, R32, "iops", "M IOPS", 3.0, most=False, peer=SPDK, scale=1e-6),
    Goal("shared memory, 4k randread QD1, null: p50", SHM, R1, "p50", "us", 1.5, peer=SPDK),
    Goal("shared memory, 128k read QD8, null", SHM, BIG, "mbps", "GB/s", 15.0, most=False, peer=SPDK, scale=1e-3),
    Goal("4k randread QD32, null, UDP, peer that cannot batch: target CPU an I/O", SINGLY, R32, "cpu_us", "us", None, peer=UDP),
    Goal("4k randwrite QD32, null, UDP, peer that cannot batch: target CPU an I/O", SINGLY, W32, "cpu_us", "us", None, peer=UDP),
    Goal("shared memory, file on tmpfs, 4k randread QD32: target CPU an I/O", SHM, TMPFS, "cpu_us", "us", 1.6, peer=RAW),
    Goal("file on ext4, O_DIRECT, 4k randread QD32: IOPS", SHM, EXT4, "iops", "k IOPS", None, most=False, peer=RAW, ratio=0.97, scale=1e-3),
]
