"""Tables of what xdsload measured: per workload, per metric, and as ratios to the floor."""
from statistics import mean, median

import workloads


def f(x, nd=1):
    if x is None:
        return "-"
    if abs(x) >= 1000:
        return f"{x:.0f}"
    return f"{x:.{nd}f}"


def merge(rs, key):
    """min/median/max over passes; a [min,median,max] of rounds counts by its parts."""
    v = []
    for r in rs:
        x = r.get(key)
        if x is None:
            continue
        v += x if isinstance(x, list) else [x]
    v = sorted(v)
    return None if not v else (v[0], v[len(v) // 2], v[-1])


def per_stream(r, key="rss_cold_kb"):
    return (r[key] - r["rss_idle_kb"]) / r["n"]


def peak(r):
    """Peak RSS over RSS at rest, after the last round."""
    return r["hwm_kb"] / max(r["rss_end_kb"], 1)  # 0: the process has ended


def order(names, known):
    return [n for n in known if n in names] + sorted(set(names) - set(known))


def row(cells):
    return "| " + " | ".join(cells) + " |"


def table(results, known):
    """One table per workload and mode; `known` servers first."""
    out = []
    for mode in ("delta", "sotw"):
        for w in workloads.in_order(r["w"] for r in results):
            rows = {}
            for r in results:
                if r["w"] == w and r["mode"] == mode:
                    rows.setdefault(r["label"], []).append(r)
            if not rows:
                continue
            out.append(f"\n### {w} {mode}\n")
            head = ["server", "cold s (min/med/max)", "cold CPU s", "cold MB", "RSS after MB (peak)",
                    "KiB/stream cold / end", "peak/rest", "update all-seen ms (min/med/max)", "p50 ms",
                    "CPU us/response (min/med/max)", "CPU ms/round", "responses/round", "MB/round", "ok"]
            out += [row(head), "| --- " * len(head) + "|"]
            for name in order(rows, known):
                rs = rows[name]
                good = [r for r in rs if r.get("cold_ok")]
                if not good:
                    why = f"no full config: {rs[0].get('cold_ready', rs[0].get('why'))} of {rs[0].get('n')}"
                    out.append(row([name, why] + [""] * (len(head) - 2)))
                    continue
                m3 = lambda k, d=1, s=1: "/".join(f(x * s, d) for x in merge(good, k)) if merge(good, k) else "-"
                m1 = lambda k, d=1, s=1: f(merge(good, k)[1] * s, d) if merge(good, k) else "-"
                upd = any(r.get("rounds") for r in good)
                okn = sum(bool(r.get("ok")) for r in rs)
                beside = sum(r.get("bystanders", 0) for r in rs)
                out.append(row([
                    name, m3("cold_max_ms", 2, 1e-3), m1("cold_cpu_ms", 2, 1e-3), m1("cold_mb", 0),
                    f"{merge(good, 'rss_cold_kb')[1]/1024:.0f} ({merge(good,'hwm_kb')[2]/1024:.0f})",
                    memory(good), f(median(map(peak, good)), 2),
                    m3("max_ms") if upd else "-", m1("p50_ms") if upd else "-",
                    m3("cpu_us_per_response") if upd else "-", m1("cpu_ms_per_round", 1) if upd else "-",
                    m1("responses_per_round", 0) if upd else "-", m1("mb_per_round", 2) if upd else "-",
                    f"{okn}/{len(rs)}" + (f", {beside} bystanders" if beside else "")]))
    return "\n".join(out)


def memory(rs):
    return f"{median(map(per_stream, rs)):.0f} / {median(per_stream(r, 'rss_end_kb') for r in rs):.0f}"


def matrix(results, known):
    """One small table per metric: a row per server, a column per workload."""
    ws = workloads.in_order(r["w"] for r in results)
    get = {
        "server CPU per stream that an update concerned, us: median (min-max over rounds and passes)":
            lambda rs: v3(rs, "cpu_us_per_affected") if any(r.get("rounds") for r in rs) else "-",
        "update until the last affected stream has it, ms: median (min-max)":
            lambda rs: v3(rs, "max_ms") if any(r.get("rounds") for r in rs) else "-",
        "cold start: s until the last stream has all / server CPU s (medians)":
            lambda rs: f"{f(merge(rs, 'cold_max_ms')[1] / 1e3, 2)} / {f(merge(rs, 'cold_cpu_ms')[1] / 1e3, 2)}",
        "KiB of server RSS per stream after the cold start / at the end / peak RSS over RSS at rest (medians)":
            lambda rs: f"{memory(rs)} / {f(median(map(peak, rs)), 2)}",
    }

    def v3(rs, k):
        lo, md, hi = merge([r for r in rs if r.get("rounds")], k)
        return f(md) if lo == hi else f"{f(md)} ({f(lo)}-{f(hi)})"

    out = []
    for title, fn in get.items():
        out += [f"\n**{title}**\n", row(["server"] + ws), "| --- " * (len(ws) + 1) + "|"]
        for mode in ("delta", "sotw"):
            for name in order({r["label"] for r in results}, known):
                cells = []
                for w in ws:
                    rs = [r for r in results if (r["w"], r["mode"], r["label"]) == (w, mode, name)]
                    good = [r for r in rs if r.get("cold_ok")]
                    bad = [r for r in rs if not r.get("ok")]
                    c = fn(good) if good else ("fails" if rs else "")
                    cells.append(c + (f" [{len(bad)}/{len(rs)} runs broke off]" if good and bad else ""))
                if any(cells):
                    out.append(row([f"{mode} {name}"] + cells))
    return "\n".join(out)


# ---- ratios -------------------------------------------------------------
# The compared values: title, digits, value of one run (None: the run has none).
METRICS = {
    "cpu": ("CPU per affected stream, us", 1, lambda r: r["cpu_us_per_affected"][1] if r.get("rounds") else None),
    "seen": ("update seen by all, ms", 1, lambda r: r["max_ms"][1] if r.get("rounds") else None),
    "cold_cpu": ("cold start CPU, ms", 0, lambda r: r["cold_cpu_ms"]),
    "cold_wall": ("cold start, ms", 0, lambda r: r["cold_max_ms"]),
    "rss": ("RSS per stream, KiB", 0, per_stream),
}
PEAK = 2.0


def target(w, mode, metric, full):
    """The target for the ratio of our server to the floor; None: the ratio is only reported.

    >>> cpu = lambda name, mode, full=False: target(workloads.named(name), mode, "cpu", full)
    >>> cpu("A5000", "delta"), cpu("A1000", "sotw"), cpu("A1000", "sotw", True), cpu("B", "sotw")
    (1.3, 1.4, 1.2, None)
    >>> cpu("C1", "delta"), cpu("C1000", "delta"), cpu("C(50,500,50)", "delta"), cpu("C(50,500,7)", "delta")
    (1.5, 1.4, 1.4, None)
    """
    if metric == "cpu":
        if w.family == "A":
            return 1.2 if full else 1.3 if mode == "delta" else 1.4
        if w.family == "C":
            return 1.5 if w.changed == 1 else 1.4 if w.changed in (w.streams, 1000) else None
        return 1.4 if w.family == "D" else None
    if metric == "seen":
        return 1.5 if w.family == "A" else None
    if metric == "rss":
        return 1.5 if w.name == "A1000" else None
    return 1.5 if w.name == "A1000" or w.family == "B" else None


def floor_of(label):
    return "floor-body-full" if label.endswith("-full") else "floor-body"


def passes(results):
    """The runs of each pass; passes of different runs of bench.py in one file stay separate."""
    groups = {}
    for r in results:
        groups.setdefault((r.get("session"), r["pass"]), []).append(r)
    return list(groups.values())


def sound(r):
    return r.get("ok") and r.get("cold_ok")


def values(runs, metric):
    return [v for v in (METRICS[metric][2](r) for r in runs if sound(r)) if v is not None and v > 0]


def of_floor(runs, label, metric):
    """For one pass, workload and mode: our value, the mean of the floor before and after it, and the ratio.

    >>> def run(label, cpu, around=None):
    ...     return {"label": label, "around": around, "ok": True, "cold_ok": True, "rounds": 10,
    ...             "cpu_us_per_affected": [0, cpu, 0]}
    >>> runs = [run("floor-body", 10, "ours"), run("ours", 18), run("floor-body", 14, "ours")]
    >>> of_floor(runs + [run("floor-body", 99, "old")], "ours", "cpu")
    (18, 12, 1.5)
    >>> of_floor([run("floor-body", 9), run("old", 18)], "old", "cpu")
    (18, 9, 2.0)
    >>> of_floor([run("floor-body", 9), dict(run("ours", 18), ok=False)], "ours", "cpu")
    """
    own = values([r for r in runs if r["label"] == label], metric)
    floors = [r for r in runs if r["label"] == floor_of(label)]
    floors = [r for r in floors if r.get("around") == label] or floors
    floors = values(floors, metric)
    return (median(own), mean(floors), median(own) / mean(floors)) if own and floors else None


def ratios(results, name):
    """Ratios of our server to the floor, with targets, then of each peer to our server: medians over the passes."""
    labels = {l for l in (name, f"{name}-locators", f"{name}-full")} & {r["label"] for r in results}
    if not labels:
        return f"no runs of {name}"
    against_floor, against_peers = [], []
    for mode in ("delta", "sotw"):
        for w in map(workloads.named, workloads.in_order(r["w"] for r in results)):
            here = [r for r in results if (r["w"], r["mode"]) == (w.name, mode)]
            for label in order(labels & {r["label"] for r in here}, [name]):
                against_floor += floor_rows(here, w, mode, label)
                against_peers += peer_rows(here, w, mode, label, labels)
    head = ["workload", "mode", "server", "what", "ours", "floor", "ratio (min-max)", "target", ""]
    missed = sum(r[-1] == "miss" for r in against_floor)
    out = [f"\n### {name} against floor-body (floor-body-full where all state is sent each time)\n",
           row(head), "| --- " * len(head) + "|", *map(row, against_floor), f"\n{missed} missed"]
    if against_peers:
        head = ["workload", "mode", "server", "peer", *(t.split(",")[0] for t, _, _ in METRICS.values())]
        out += [f"\n### Ratios of the other servers to {name}\n",
                row(head), "| --- " * len(head) + "|", *map(row, against_peers)]
    return "\n".join(out)


def floor_rows(here, w, mode, label):
    rows = []
    start = [w.name, mode, label]
    own = [r for r in here if r["label"] == label]
    bad = [r for r in own if not sound(r) or r.get("bystanders") or r.get("variant_errors")]
    rows.append(start + ["runs with nothing lost or wrong", f"{len(own) - len(bad)} of {len(own)}", "", "", "all",
                         "miss" if bad else "pass"])
    for metric, (title, digits, _) in METRICS.items():
        per_pass = [x for x in (of_floor(runs, label, metric) for runs in passes(here)) if x]
        most = target(w, mode, metric, label.endswith("-full"))
        if not per_pass:
            if w.changed or metric not in ("cpu", "seen"):
                rows.append(start + [title, "-", "-", "-", f(most, 1), "miss" if most else ""])
            continue
        mine, floors, rs = zip(*per_pass)
        verdict = "" if most is None else "pass" if median(rs) <= most else "miss"
        spread = f"{median(rs):.2f}" + (f" ({min(rs):.2f}-{max(rs):.2f})" if len(rs) > 1 else "")
        rows.append(start + [title, f(median(mine), digits), f(median(floors), digits), spread, f(most), verdict])
    peaks = [peak(r) for r in own if sound(r)]
    if peaks:
        spread = f"{median(peaks):.2f}" + (f" ({min(peaks):.2f}-{max(peaks):.2f})" if len(peaks) > 1 else "")
        top, rest = (median(r[k] for r in own if sound(r)) / 1024 for k in ("hwm_kb", "rss_end_kb"))
        rows.append(start + ["peak RSS / RSS at rest, MB", f"{top:.0f} / {rest:.0f}", "", spread, f(PEAK),
                             "pass" if median(peaks) <= PEAK else "miss"])
    return rows


def peer_rows(here, w, mode, label, ours):
    rows = []
    peers = {r["label"] for r in here} - ours
    for peer in sorted(p for p in peers if not p.startswith("floor-")):
        cells = []
        for metric in METRICS:
            each = []
            for runs in passes(here):
                own, other = (values([r for r in runs if r["label"] == l], metric) for l in (label, peer))
                if own and other:
                    each.append(median(other) / median(own))
            if not each:  # measured at different times
                own, other = (values([r for r in here if r["label"] == l], metric) for l in (label, peer))
                each = [median(other) / median(own)] if own and other else []
            cells.append(f(median(each), 2 if median(each) < 10 else 0) if each else "-")
        failed = sum(not sound(r) for r in here if r["label"] == peer)
        runs = sum(r["label"] == peer for r in here)
        rows.append([w.name, mode, label, peer + (f" [{failed}/{runs} runs broke off]" if failed else ""), *cells])
    return rows
