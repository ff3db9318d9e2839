#!/usr/bin/env python3
"""A storm: thousands of clients connect at once while commits go on, with slow readers among them.

    (cd xdsload && go build -o xdsload .)
    ./storm.py --server ../../target/dist/load-server

Prints a line of JSON per run; runs with and without slow readers take turns, and so do several servers. Of each run: how
long it took from the first connection until all clients had everything (cold_max_ms), the memory of the server before, at
its highest and after all had left, and what went wrong.
"""
import argparse
import http.client
import json
import os
import resource
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GRPC, HTTP = 18500, 19500
CLUSTER = b"type.googleapis.com/envoy.config.cluster.v3.Cluster"
PATH = b"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def field(number, value):
    return bytes([number << 3 | 2, len(value)]) + value


def asks_for_clusters(node):
    """What a client says that wants all clusters: the preface, SETTINGS, HEADERS and one message."""
    headers = {b":method": b"POST", b":scheme": b"http", b":path": PATH, b":authority": b"storm",
               b"content-type": b"application/grpc", b"te": b"trailers"}
    block = b"".join(b"\x00" + bytes([len(k)]) + k + bytes([len(v)]) + v for k, v in headers.items())
    request = field(1, field(1, node)) + field(2, CLUSTER) + field(3, b"*")
    message = b"\x00" + struct.pack(">I", len(request)) + request
    return (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, block)
            + frame(0, 0, 1, message))


class SlowReaders(threading.Thread):
    """Clients that read 1 KB a second."""

    def __init__(self, count):
        super().__init__(daemon=True)
        self.sockets, self.done = [], threading.Event()
        for i in range(count):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", GRPC))
            s.sendall(asks_for_clusters(b"slow-%d" % i))
            s.setblocking(False)
            self.sockets.append(s)
        self.bytes = 0

    def run(self):
        while not self.done.wait(1):
            for s in self.sockets:
                try:
                    self.bytes += len(s.recv(1024))
                except BlockingIOError:
                    pass
                except OSError:
                    pass

    def stop(self):
        self.done.set()
        self.join()
        for s in self.sockets:
            s.close()


class Commits(threading.Thread):
    """So many commits a second, each of one load assignment."""

    def __init__(self, per_second):
        super().__init__(daemon=True)
        self.per_second, self.done, self.count, self.slowest = per_second, threading.Event(), 0, 0.0

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", HTTP)
        start = time.monotonic()
        while not self.done.is_set():
            self.count += 1
            began = time.monotonic()
            connection.request("POST", f"/update?round={self.count}&count=1")
            assert connection.getresponse().read() == b""
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.done.wait(max(0, start + self.count / self.per_second - time.monotonic()))

    def stop(self):
        self.done.set()
        self.join()


def memory(pid, key="VmRSS"):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith(key))


def run(a, command, slow):
    size = ["-clusters", str(a.clusters), "-eds", str(a.clusters)]
    server = subprocess.Popen(shlex.split(command) + ["-grpc", f"127.0.0.1:{GRPC}", "-http", f"127.0.0.1:{HTTP}", *size])
    readers = commits = None
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", GRPC)).close()
                break
            except OSError:
                time.sleep(0.05)
        before = memory(server.pid)
        commits = Commits(a.commits)
        commits.start()
        if slow:
            readers = SlowReaders(slow)
            readers.start()
        load = [f"{HERE}/xdsload/xdsload", "-addr", f"127.0.0.1:{GRPC}", "-mode", a.mode, "-n", str(a.clients),
                "-node-per-stream", "-clusters", str(a.clusters), "-eds", "all", "-rounds", "0",
                "-pid", str(server.pid), "-timeout", f"{a.limit}s"]
        out = subprocess.run(load, stdout=subprocess.PIPE, text=True, timeout=a.limit + 30).stdout
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        result = lines[-1] if lines else {"ok": False, "why": "no output"}
        told = {k: result.get(k) for k in ("ok", "why", "cold_ms", "cold_p50_ms", "cold_p99_ms", "cold_max_ms")
                if k in result}
        highest = memory(server.pid, "VmHWM")
        if readers:
            told["slow_readers_read"] = readers.bytes
            readers.stop()
        # What is freed goes back while the server has something to do.
        time.sleep(a.rest)
        commits.stop()
        return told | {"server": command, "mode": a.mode, "clients": a.clients, "slow": slow, "commits": commits.count,
                       "slowest_commit_ms": round(commits.slowest * 1000, 1),
                       "memory_mb": [before, highest, memory(server.pid)]}
    finally:
        if commits:
            commits.done.set()
        server.send_signal(signal.SIGKILL)
        server.wait()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--server", action="append", help="a command; may be given more than once")
    ap.add_argument("--clients", type=int, default=5000)
    ap.add_argument("--slow", type=int, default=100, help="slow readers in every other run")
    ap.add_argument("--commits", type=int, default=100, help="per second")
    ap.add_argument("--clusters", type=int, default=50, help="with a load assignment each")
    ap.add_argument("--mode", default="delta", choices=("delta", "sotw"))
    ap.add_argument("--passes", type=int, default=3)
    ap.add_argument("--rest", type=float, default=5, help="seconds from the last client to the last look at the memory")
    ap.add_argument("--limit", type=int, default=60, help="seconds per run")
    a = ap.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    servers = a.server or [f"{HERE}/../../target/release/load-server"]
    cold = {(server, slow): [] for slow in dict.fromkeys((0, a.slow)) for server in servers}
    for _ in range(a.passes):
        for (server, slow), times in cold.items():
            result = run(a, server, slow)
            print(json.dumps(result), flush=True)
            times.append(result.get("cold_max_ms") or float("nan"))
    for (server, slow), times in cold.items():
        print(f"{server}, {slow} slow readers: all {a.clients} clients had everything after "
              f"{statistics.median(times):.0f} ms (median of {len(times)})")


if __name__ == "__main__":
    main()
