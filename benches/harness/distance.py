"""How far the two cores are from each other, and which runs that spoils.

A hypervisor may place two virtual cores on cores that share a cache or on such that do not, and move them at any time. What
one core has written then costs the other several times as much, so a run counts by where its cores were.
"""
import json

from .machine import ahead, run

NEAR, FAR, MIXED = "near", "far", "mixed"
# Cores are far from each other above twice the least that was seen; readings of near ones vary more than that below this.
LEAST_NS, FAR_TIMES = 80, 2
# A run is repeated so often at most, and all of them together by so much.
TRIES, REPEATS = 4, 0.5


class Distance:
    """The time of a cache line from one core to the other; nobody else may spin on them while it is read."""

    def __init__(self, program, cores):
        self.command = [program, "--distance", "--json", "--cores", ",".join(map(str, cores))]
        self.seen, self.runs, self.repeats = [], 0, 0

    def read(self):
        self.seen.append(json.loads(run(self.command, preexec_fn=ahead))["distance_ns"])
        return self.seen[-1]

    def near_up_to(self):
        return FAR_TIMES * max(min(self.seen), LEAST_NS)

    def of(self, figures):
        """Where the cores were in that run, by the readings before and after it."""
        far = {figures[key] > self.near_up_to() for key in ("distance_before_ns", "distance_after_ns")}
        return MIXED if len(far) == 2 else FAR if far.pop() else NEAR

    def runs_of(self, measure):
        """One run by `measure`, and more of them while the cores were not near, as far as that is allowed."""
        figures = [self.one(measure)]
        self.runs += 1
        while self.of(figures[-1]) != NEAR and len(figures) <= TRIES and self.repeats < REPEATS * self.runs:
            self.repeats += 1
            figures.append(self.one(measure))
        return figures

    def one(self, measure):
        before = self.read()
        figures = measure()
        return {**figures, "distance_before_ns": before, "distance_after_ns": self.read()}

    def facts(self, rows):
        """What a reader of the figures has to know."""
        counts = [sum(figures["cores"] == where for row in rows for figures in row["runs"]) for where in (NEAR, FAR, MIXED)]
        return {"lowest_ns": min(self.seen), "highest_ns": max(self.seen), "near_up_to_ns": self.near_up_to(),
                **dict(zip((NEAR, FAR, MIXED), counts)), "repeats": self.repeats}


def counted(runs):
    """The runs that count, and where the cores were in them: near ones if there are enough, else all."""
    near = [figures for figures in runs if figures["cores"] == NEAR]
    chosen = near if len(near) >= 2 else runs
    places = {figures["cores"] for figures in chosen}
    return chosen, places.pop() if len(places) == 1 else MIXED


def sentence(facts):
    return (f"a cache line took {facts['lowest_ns']:.0f} to {facts['highest_ns']:.0f} ns from one core to the other; up to "
            f"{facts['near_up_to_ns']:.0f} ns they are near: {facts[NEAR]} runs near, {facts[FAR]} far, {facts[MIXED]} mixed, "
            f"{facts['repeats']} of them repeats")
