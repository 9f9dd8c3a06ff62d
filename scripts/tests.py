#!/usr/bin/env python3
"""Runs all tests of the workspace: those of the simulator, which do nothing but compute, at the lowest priority beside
the others, which wait for processes and clocks much of their time.

    tests.py [CARGO]

What a test program says is shown when it has ended. All of them run, whatever fails; exit status 1 if something did.
"""

import json
import os
import subprocess
import sys
import threading
import time

# Crates whose tests may take as long as they like: their time is virtual.
COMPUTING = {"sim"}

print_lock = threading.Lock()


def programs(cargo):
    """Builds all test programs: (package, name, directory of the package, program)."""
    command = [cargo, "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as building:
        messages = [json.loads(line) for line in building.stdout if line.startswith("{")]
    if building.returncode != 0:
        sys.exit(building.returncode)
    found = []
    for message in messages:
        if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            directory = os.path.dirname(message["manifest_path"])
            found.append((os.path.basename(directory), message["target"]["name"], directory, message["executable"]))
    return found


def run(lane, is_computing, failed):
    """Runs some test programs one after the other."""
    for package, name, directory, program in lane:
        since = time.monotonic()
        environment = dict(os.environ, CARGO_MANIFEST_DIR=directory)
        command = (["nice", "-n", "19"] if is_computing else []) + [program, "-q"]
        ended = subprocess.run(command, cwd=directory, env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
        with print_lock:
            print(f"-- {package} {name}: {time.monotonic() - since:.1f} s\n{ended.stdout.strip()}", flush=True)
            if ended.returncode != 0:
                failed.append(f"{package} {name}: exit status {ended.returncode}")


def main():
    cargo = sys.argv[1] if len(sys.argv) > 1 else "cargo"
    failed = []
    lanes = {True: [], False: []}
    for program in sorted(programs(cargo)):
        lanes[program[0] in COMPUTING].append(program)
    if not all(lanes.values()):
        sys.exit("tests.py: a lane has no test programs: the packages have other names")
    threads = [threading.Thread(target=run, args=(lane, key, failed)) for key, lane in lanes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if subprocess.run([cargo, "test", "-q", "--workspace", "--doc"], check=False).returncode != 0:
        failed.append("the documentation's tests")
    for words in failed:
        print(f"FAILED: {words}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
