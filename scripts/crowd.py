#!/usr/bin/env python3
"""Many processes that start at once, each a client of its own that has to reach every server.

    scripts/crowd.py [--programs DIR] [--processes N] [--servers N] [--transport auto|tcp]

Each reads a file by `tabane cat`. All of them have to get it: who comes while servers are full waits for his turn. The
time until the last has ended is told, and the memory of the servers before and after. Ends with 1 when anything is
wrong.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

CONTENTS = b"what everybody reads\n"


def resident(directory):
    """KiB that the servers have resident, by themselves."""
    sizes = []
    for name in sorted(os.listdir(directory)):
        if name.endswith(".pid"):
            with open(os.path.join(directory, name), encoding="ascii") as file:
                number = file.read().split()[0]
            with open(f"/proc/{number}/status", encoding="ascii") as file:
                sizes += [int(line.split()[1]) for line in file if line.startswith("RssAnon:")]
    return sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default="target/release")
    parser.add_argument("--processes", type=int, default=2_000)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--transport", default="auto")
    options = parser.parse_args()
    tabane = os.path.abspath(os.path.join(options.programs, "tabane"))
    with tempfile.TemporaryDirectory(prefix="tabane-crowd-") as ground:
        run = os.path.join(ground, "run")
        environment = {"PATH": os.environ["PATH"], "TABANE_CLUSTER": run, "TABANE_RUN_DIRECTORY": run}

        def call(*words, **more):
            return subprocess.run([tabane, *words], env=environment, check=True, **more)

        store = f"memory:{ground}/stores,size=64M"
        call("up", "--servers", str(options.servers), "--store", store, "--transport", options.transport,
             stdout=subprocess.DEVNULL)
        try:
            # One file at each server, or nearly so.
            paths = [f"/file-{number}" for number in range(4 * options.servers)]
            for path in paths:
                call("put", path, input=CONTENTS)
            before, begun = resident(run), time.monotonic()
            crowd = []
            for number in range(options.processes):
                words = [tabane, "cat", *(paths[(number + step) % len(paths)] for step in range(options.servers))]
                crowd.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            started, failed = time.monotonic() - begun, []
            for process in crowd:
                output, complaint = process.communicate()
                if process.returncode != 0 or output != CONTENTS * options.servers:
                    failed.append((process.returncode, complaint.decode(errors="replace").strip()))
            took = time.monotonic() - begun
            print(f"{options.processes} processes, {options.servers} servers, {options.transport}: all were started "
                  f"after {started:.1f} s, had ended after {took:.1f} s, {len(failed)} failed")
            print(f"memory of the servers, KiB: {before} before, {resident(run)} after")
            for code, complaint in failed[:5]:
                print(f"exit {code}: {complaint}")
            call("check", stdout=subprocess.DEVNULL)
            return 1 if failed else 0
        finally:
            call("down", stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
