"""The workloads by name: the arguments of the server and of the load client.

>>> [w.name for w in read('A100, C(5000,100000,1),D(10,1000,1)')]
['A100', 'C(5000,100000,1)', 'D(10,1000,1)']
>>> named('C1').load == named('C(1000,100000,1)').load
True
>>> named('C(5000,100000,1)').load[:8]
['-n', '5000', '-clusters', '0', '-eds', '20', '-eds-total', '100000']
>>> named('D(10,1001,1)')
Traceback (most recent call last):
    ...
ValueError: D(10,1001,1): variants must be from 1 to 1000
"""
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    name: str
    family: str  # A, B, C or D
    streams: int
    server: list
    load: list
    changed: int = 1  # load assignments per round; 0: there are no rounds
    variants: int = 1
    changed_variants: int = 1


def a(name, streams, *more):
    size = ["-clusters", "1000", "-eds"]
    return Workload(name, "A", streams, size + ["1000"], ["-n", str(streams), *size, "all", *more])


def b(name):
    load = ["-n", "200", "-clusters", "10000", "-eds", "none"]
    return Workload(name, "B", 200, ["-clusters", "10000", "-eds", "0"], load, changed=0)


def c(name, streams, names, changed):
    # Each name belongs to one stream, as far as possible; with fewer names than streams, several streams share one.
    each = max(1, min(names // streams, 100))
    load = ["-n", str(streams), "-clusters", "0", "-eds", str(each), "-eds-total", str(names), "-count", str(changed)]
    return Workload(name, "C", streams, ["-clusters", "0", "-eds", str(names)], load, changed)


def d(name, streams, variants, changed_variants):
    load = ["-n", str(streams), "-clusters", "200", "-eds", "all", "-node-per-stream",
            "-variants", str(variants), "-changed-variants", str(changed_variants)]
    server = ["-clusters", "200", "-eds", "200", "-nodes", str(streams), "-variants", str(variants)]
    return Workload(name, "D", streams, server, load, 1, variants, changed_variants)


# For each number: its name and its maximum, which may be an earlier parameter.
FAMILIES = {
    "C": (c, [("streams", 100_000), ("names", 1_000_000), ("changed", "names")]),
    "D": (d, [("streams", 100_000), ("variants", 1000), ("changed_variants", "variants")]),
}
FIXED = {
    "A100": lambda n: a(n, 100),
    "A1000": lambda n: a(n, 1000),
    "A5000": lambda n: a(n, 5000),
    "A1000mux": lambda n: a(n, 1000, "-conns", "20"),
    "B": b,
    "C1": lambda n: c(n, 1000, 100_000, 1),
    "C1000": lambda n: c(n, 1000, 100_000, 1000),
    "D": lambda n: d(n, 1000, 10, 10),
}


def named(name):
    if name in FIXED:
        return FIXED[name](name)
    m = re.fullmatch(r"(\w)\((\d+),(\d+),(\d+)\)", name)
    if not m or m[1] not in FAMILIES:
        raise ValueError(f"{name}: no such workload; there are {', '.join(FIXED)}, "
                         "C(streams,names,changed) and D(streams,variants,changed_variants)")
    make, parameters = FAMILIES[m[1]]
    values = {}
    for (parameter, most), value in zip(parameters, map(int, m.groups()[1:])):
        most = values.get(most, most)
        if not 1 <= value <= most:
            raise ValueError(f"{name}: {parameter} must be from 1 to {most}")
        values[parameter] = value
    return make(name, *values.values())


def read(text):
    """Splits at the commas outside parentheses."""
    return [named(n) for n in re.findall(r"[^,(]+(?:\([^)]*\))?[^,]*", re.sub(r"\s", "", text))]


def in_order(names):
    """Fixed names first, then the others in their order."""
    return sorted(dict.fromkeys(names), key=lambda n: list(FIXED).index(n) if n in FIXED else len(FIXED))
