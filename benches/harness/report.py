"""Medians, the tables, the goals, the plots, and the comparison with an earlier run."""
import json
import statistics
import subprocess

from .cases import CHANNELS, DEPTHS, FLOOR, GOALS, SHM, UDP
from .distance import NEAR

FORMAT = 1
# So much of a core for everybody else is noise.
BUSY_PERCENT = 10


def summary(runs):
    """Median of every figure, and of those that rank systems the spread: (most - least) / median."""
    keys = dict.fromkeys(key for run in runs for key in run if key != "cores")
    middle, spread = {}, {}
    for key in keys:
        values = [run[key] for run in runs if run.get(key) is not None]
        middle[key] = statistics.median(values) if values else None
        if key in ("iops", "p50", "cpu_us") and values and middle[key]:
            spread[key] = (max(values) - min(values)) / middle[key]
    return middle, spread


def number(value, width, digits):
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def print_rows(rows):
    """One line for each case and system, with the ratio to the first system of the case."""
    print(f"{'workload':32} {'system':18} {'IOPS':>9} {'±%':>4} {'MB/s':>7} {'p50 us':>8} {'p99 us':>8} {'p99.9':>8} {'CPU us/IO':>10} {'x IOPS':>7} {'others %':>8} {'cores':>6}")
    first = {}
    for row in rows:
        m = row["median"]
        base = first.setdefault(row["case"], m["iops"])
        spread = row["spread"].get("iops")
        print(f"{row['case']:32} {row['system']:18} {m['iops']:9.0f} {number(spread and 50 * spread, 4, 0)} {m['mbps']:7.0f} "
              f"{number(m.get('p50'), 8, 1)} {number(m.get('p99'), 8, 1)} {number(m.get('p99.9'), 8, 1)} {number(m.get('cpu_us'), 10, 2)} "
              f"{m['iops'] / base:7.2f} {number(m.get('other_percent'), 8, 0)} {row['cores']:>6}")


def busy_percent(rows):
    """What everybody else used of a core, in the middle of all rows."""
    shares = [row["median"]["other_percent"] for row in rows if row["median"].get("other_percent") is not None]
    return statistics.median(shares) if shares else None


def warn_if_busy(rows):
    """On a busy machine a reactor that is preempted counts as busy, and percentiles are the scheduler's."""
    percent = busy_percent(rows)
    if percent is not None and percent > BUSY_PERCENT:
        print(f"\nWARNING: others used {percent:.0f} % of a core meanwhile: these figures say little, take them again on an idle machine")


def warn_if_far(rows):
    """Such rows say what the machine did, too, not the system alone."""
    far = [row for row in rows if row["cores"] != NEAR]
    if far:
        print(f"\nWARNING: in {len(far)} of {len(rows)} rows the cores were far from each other or moved: compare these with their like only")


def figure(rows, system, case, key):
    for row in rows:
        if row["system"] == system and row["case"] == case:
            return row["median"].get(key)
    return None


def judge_goals(rows, extra):
    """Every goal of issue 5 with our value, the peer's and the ratio; what was not measured says so."""
    judged = []
    for goal in GOALS:
        ours = figure(rows, goal.system, goal.case.name, goal.figure)
        peer = goal.peer and figure(rows, goal.peer, goal.case.name, goal.figure)
        floor = figure(rows, FLOOR, goal.case.name, goal.figure) if goal.system == UDP else None
        ratio = ours / peer if ours is not None and peer else None
        met = None
        if ours is not None:
            ours *= goal.scale
            checks = []
            if goal.bound is not None:
                checks.append(ours <= goal.bound if goal.most else ours >= goal.bound)
            if goal.ratio is not None and ratio is not None:
                checks.append(ratio <= goal.ratio if goal.most else ratio >= goal.ratio)
            met = all(checks) if checks else None
        words = []
        if goal.bound is not None:
            words.append(f"{'<=' if goal.most else '>='} {goal.bound:g} {goal.unit}")
        if goal.ratio is not None:
            words.append(f"{'<=' if goal.most else '>='} {goal.ratio:.2f} x {goal.peer}")
        judged.append({"goal": goal.text, "wanted": " and ".join(words), "unit": goal.unit, "ours": ours, "peer_name": goal.peer,
                       "peer": peer * goal.scale if peer else None, "ratio": ratio, "met": met,
                       "floor": floor * goal.scale if floor else None})
    growth = None
    per_channel = [figure(rows, UDP, case.name, "cpu_us") for case in (CHANNELS[0], CHANNELS[-1])]
    if all(per_channel):
        growth = 100 * (per_channel[1] / per_channel[0] - 1)
    idle, memory = extra.get("idle_policy"), extra.get("idle_channel_bytes")
    own = [
        ("1 -> 64 channels at QD64, UDP: growth of target CPU an I/O", "< 15 %", "%", growth, 15.0),
        ("memory of an idle channel", "<= 16 KiB", "KiB", memory and memory["measured"] / 1024, 16.0),
        ("idle policy sleep: CPU when idle", "< 2 %", "% of a core", idle and idle["cpu_percent"], 2.0),
        ("idle policy sleep: first I/O, p50", "<= 100 us", "us", idle and idle["first_io_us"], 100.0),
    ]
    for text, wanted, unit, value, bound in own:
        judged.append({"goal": text, "wanted": wanted, "unit": unit, "ours": value, "peer_name": None, "peer": None, "ratio": None,
                       "met": None if value is None else value <= bound, "floor": None})
    return judged


def print_goals(judged):
    print(f"\n{'goal':76} {'wanted':34} {'ours':>9} {'peer':>9} {'ratio':>6} {'floor':>9}  met")
    for goal in judged:
        met = {True: "yes", False: "NO", None: "not measured" if goal["ours"] is None else "-"}[goal["met"]]
        print(f"{goal['goal']:76} {goal['wanted']:34} {number(goal['ours'], 9, 2)} {number(goal['peer'], 9, 2)} {number(goal['ratio'], 6, 2)} {number(goal['floor'], 9, 2)}  {met}")
    missed = [goal for goal in judged if goal["met"] is False]
    print(f"\nnot met: {len(missed)}" if missed else "\nnone of the measured goals is missed")
    for goal in missed:
        peer = f"; {goal['peer_name']}: {goal['peer']:.2f}" if goal["peer"] is not None else ""
        floor = f"; the kernel and a CRC alone: {goal['floor']:.2f}" if goal["floor"] is not None else ""
        print(f"  {goal['goal']}: {goal['ours']:.2f} {goal['unit']}, wanted {goal['wanted']}{peer}{floor}")


def draw(binary, folder, rows):
    """qd.svg: latency against IOPS over depths; channels.svg: IOPS against channels."""
    def plot(name, title, x, y, series):
        series = [entry for entry in series if entry["points"]]
        if series:
            text = json.dumps({"title": title, "x": x, "y": y, "series": series})
            subprocess.run([str(binary), "plot", "--output", str(folder / name)], input=text, text=True, check=True)
            print(f"plot: {folder / name}")

    systems = dict.fromkeys(row["system"] for row in rows)
    depths = []
    for system in systems:
        points = [(row["median"]["iops"], row["median"]["p50"], case.name.split()[-1]) for case in DEPTHS for row in rows
                  if row["system"] == system and row["case"] == case.name and row["median"].get("p50")]
        if len(points) > 1:
            depths.append({"name": system, "points": points})
    plot("qd.svg", "4k random reads, null back end: median latency at QD 1 to 128", {"label": "IOPS"}, {"label": "p50 in us", "log": True}, depths)
    channels = [{"name": system, "points": [(case.channels, row["median"]["iops"], "") for case in CHANNELS for row in rows
                                            if row["system"] == system and row["case"] == case.name]} for system in (UDP, SHM)]
    plot("channels.svg", "4k random reads, null back end, QD64 over 1 to 64 channels on one shard", {"label": "channels", "log": True}, {"label": "IOPS"}, channels)


def compare(rows, path):
    """The ratio of now to an earlier run's medians, of what both measured."""
    with open(path) as file:
        before = json.load(file)
    if before.get("format") != FORMAT:
        raise RuntimeError(f"{path} has format {before.get('format')}, this is {FORMAT}")
    facts = before["machine"]
    print(f"\ncompared with {facts['commit']} of {facts['date']} ({path}); only what ran interleaved compares well to a few percent")
    print(f"{'workload':32} {'system':18} {'IOPS':>15} {'p50':>15} {'CPU us/IO':>15}  cores")
    for row in rows:
        for old in before["rows"]:
            if (old["case"], old["system"]) != (row["case"], row["system"]):
                continue
            cells = []
            for key, digits in (("iops", 0), ("p50", 1), ("cpu_us", 2)):
                then, now = old["median"].get(key), row["median"].get(key)
                cells.append(f"{'-':>15}" if not then or now is None else f"{now:9.{digits}f} x{now / then:4.2f}")
            cells.append(f"{old.get('cores', '-')} -> {row['cores']}")
            print(f"{row['case']:32} {row['system']:18} " + " ".join(f"{cell:>15}" for cell in cells))


def save(path, mode, facts, apart, rows, goals, extra, skipped):
    text = {"format": FORMAT, "mode": mode, "machine": facts, "distance": apart, "rows": rows, "goals": goals, "extra": extra, "skipped": skipped}
    path.write_text(json.dumps(text, indent=1) + "\n")
    print(f"figures: {path}")
