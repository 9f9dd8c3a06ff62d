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
import tempfile
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


def run(lane, is_computing, ended_well, failed):
    """Runs some test programs one after the other."""
    for package, name, directory, program in lane:
        since = time.monotonic()
        environment = dict(os.environ, CARGO_MANIFEST_DIR=directory)
        command = (["nice", "-n", "19"] if is_computing else []) + [program, "-q"]
        # A file, for what a test has left running would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            ended = subprocess.run(command, cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT)
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        with print_lock:
            print(f"-- {package} {name}: {time.monotonic() - since:.1f} s\n{said}", flush=True)
            if ended.returncode == 0:
                ended_well.append(program)
            else:
                failed.append(f"{package} {name}: exit status {ended.returncode}")


def main():
    cargo = sys.argv[1] if len(sys.argv) > 1 else "cargo"
    ended_well, failed = [], []
    lanes = {True: [], False: []}
    found = sorted(programs(cargo))
    for program in found:
        lanes[program[0] in COMPUTING].append(program)
    if not all(lanes.values()):
        sys.exit("tests.py: a lane has no test programs: the packages have other names")
    # Whoever interrupts this does not want the next program either.
    threads = [threading.Thread(target=run, args=(lane, key, ended_well, failed), daemon=True)
               for key, lane in lanes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(ended_well) + len(failed) != len(found):
        failed.append("some test programs could not be run")
    if subprocess.run([cargo, "test", "-q", "--workspace", "--doc"], check=False).returncode != 0:
        failed.append("the documentation's tests")
    for words in failed:
        print(f"FAILED: {words}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
