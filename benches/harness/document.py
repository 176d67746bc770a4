"""The generated part of docs/performance.md, between its two markers."""
import contextlib
import io

from . import distance, model
from .report import busy_percent

BEGIN, END = "<!-- figures of scripts/bench: begin -->\n", "<!-- figures of scripts/bench: end -->\n"


def cell(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def goals_table(goals):
    met = {True: "yes", False: "**no**"}
    lines = ["| goal | wanted | ours | peer | ratio | floor | met |", "|---|---|---|---|---|---|---|"]
    for goal in goals:
        peer = "-" if goal["peer"] is None else f"{cell(goal['peer'])} ({goal['peer_name']})"
        state = met.get(goal["met"], "not measured" if goal["ours"] is None else "reported")
        ours = "-" if goal["ours"] is None else f"{cell(goal['ours'])} {goal['unit']}"
        lines.append(f"| {goal['goal']} | {goal['wanted'] or '-'} | {ours} | {peer} | {cell(goal['ratio'])} | {cell(goal['floor'])} | {state} |")
    return lines


def rows_table(rows):
    lines = ["| workload | system | IOPS | ±% | MB/s | p50 us | p99 us | CPU us an I/O | cores |", "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        m, spread = row["median"], row["spread"].get("iops")
        lines.append(f"| {row['case']} | {row['system']} | {m['iops']:,.0f} | {cell(spread and 50 * spread, 0)} | {m['mbps']:,.0f} | {cell(m.get('p50'), 1)} "
                     f"| {cell(m.get('p99'), 1)} | {cell(m.get('cpu_us'))} | {row['cores']} |")
    return lines


def text(mode, facts, apart, rows, goals, skipped, figures):
    busy = busy_percent(rows)
    lines = [f"`scripts/bench {mode}` at {facts['commit']}, {facts['date']}: {facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}; "
             f"everybody else used {cell(busy, 0)} % of a core meanwhile (median). Cores: {distance.sentence(apart)}.", "", "### Goals", "", *goals_table(goals), "", "### All rows", "", *rows_table(rows)]
    if skipped:
        lines += ["", "Not measured:", "", *(f"* {name}: {why}" for name, why in skipped.items())]
    printed = io.StringIO()
    with contextlib.suppress(RuntimeError), contextlib.redirect_stdout(printed):
        model.run(figures)
        lines += ["", "### 2 x 100 GbE and 64 cores", "", "What `scripts/bench model` makes of these costs.", "", printed.getvalue().rstrip()]
    return "\n".join(lines) + "\n"


def write(path, generated):
    whole = path.read_text()
    before, rest = whole.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(before + BEGIN + "\n" + generated + "\n" + END + after)
    print(f"documented: {path}")
