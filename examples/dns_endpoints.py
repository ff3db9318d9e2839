#!/usr/bin/env python3
"""Keeps the endpoints of clusters equal to what DNS answers, by a folder or a store of xds.

    dns_endpoints.py --folder DIR CLUSTER=HOST:PORT..    writes a file per cluster
    dns_endpoints.py --store DIR CLUSTER=HOST:PORT..     commits all clusters together

docs/writers.md has the contract that this program keeps. It needs Python 3.9 and nothing else.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


def addresses(host, port):
    """The addresses of a host, sorted: the same answer in another order is no change."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({sockaddr[0] for *_, sockaddr in found})


def assignment(cluster, host, port):
    def endpoint(address):
        return {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}}

    endpoints = [endpoint(address) for address in addresses(host, port)]
    return {"@type": TYPE, "cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}


class Folder:
    """Writes each file whole: xds never reads the first half of one."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def write(self, assignments):
        for assignment in assignments:
            file = f"{assignment['cluster_name']}.json"
            path, beside = self.folder / file, self.folder / f".{file}.new"
            text = json.dumps(assignment, indent=2) + "\n"
            if path.exists() and path.read_text() == text:
                continue
            with open(beside, "w") as new:
                new.write(text)
                new.flush()
                os.fsync(new.fileno())
            os.replace(beside, path)
            print(f"wrote {path}", flush=True)


class Store:
    """Commits all assignments, or none. What did not change is no change of the store."""

    def __init__(self, store):
        self.command = ["xds", "put", "-", "--store", store, "--owner", "dns-endpoints"]

    def write(self, assignments):
        put = subprocess.run(
            self.command, input=json.dumps({"resources": assignments}), text=True, capture_output=True
        )
        if put.returncode != 0:
            # Nothing was changed. 4: somebody else owns it or changed it; 2: our resources are wrong.
            raise OSError(f"xds put: exit code {put.returncode}: {put.stderr.strip()}")
        print(put.stdout, end="", flush=True)


def target(text):
    cluster, _, place = text.partition("=")
    host, _, port = place.rpartition(":")
    if not (cluster and host and port.isdigit()) or "/" in cluster:
        raise argparse.ArgumentTypeError("write CLUSTER=HOST:PORT")
    return cluster, host, int(port)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=Folder, dest="sink", metavar="DIR")
    where.add_argument("--store", type=Store, dest="sink", metavar="DIR")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="ask again; without it, once")
    parser.add_argument("targets", type=target, nargs="+", metavar="CLUSTER=HOST:PORT")
    options = parser.parse_args()
    while True:
        assignments, failed = [], False
        for cluster, host, port in options.targets:
            try:
                assignments.append(assignment(cluster, host, port))
            except OSError as error:
                # Clients keep the last endpoints: an outage of DNS is none of the service.
                print(f"{cluster}: {host}: {error}", file=sys.stderr, flush=True)
                failed = True
        try:
            options.sink.write(assignments)
        except OSError as error:
            print(error, file=sys.stderr, flush=True)
            failed = True
        if options.every is None:
            sys.exit(1 if failed else 0)
        time.sleep(options.every)


if __name__ == "__main__":
    main()
