"""Results of suites, the list of accepted deviations in docs/semantics.md that they are compared with, and what ext4
said to the same."""

import fnmatch
import json
import pathlib
import re
import threading
import time

SEMANTICS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "semantics.md"
HEADING = "## Tests of public suites that fail"


STATES = ("passed", "failed", "accepted", "as ext4", "skipped", "left out")


class Report:
    """Collects what each test said, from any thread. `ext4` holds the states of the same tests on ext4: what fails or
    is skipped there is not held against the mount."""

    def __init__(self, deviations, ext4=None):
        self.deviations = deviations
        self.ext4 = ext4 or {}
        self.states = {}
        self.lock = threading.Lock()
        self.unused = {}
        self.counts = {}
        self.bad = []

    def begin(self, suite):
        self.suite = suite
        self.counts[suite] = dict.fromkeys(STATES, 0) | dict(seconds=time.monotonic())
        self.unused[suite] = {pattern for row, pattern in self.deviations if row == suite}
        print(f"== {suite}", flush=True)

    def end(self, whole):
        """`whole`: all tests of the suite ran, so that a deviation that did not show is gone."""
        counts = self.counts[self.suite]
        counts["seconds"] = time.monotonic() - counts["seconds"]
        if whole:
            for pattern in sorted(self.unused[self.suite]):
                self.bad.append(f"{self.suite} {pattern}: is listed in {SEMANTICS.name} but did not fail")

    def note(self, words):
        print(f"         ({words})", flush=True)

    def fails_on_ext4(self, name):
        return self.ext4.get(f"{self.suite} {name}") in ("failed", "skipped")

    def result(self, name, state, message="", quiet=False):
        """`state` is passed, failed, skipped or left out."""
        with self.lock:
            self.add(name, state, message, quiet)

    def add(self, name, state, message, quiet):
        self.states[f"{self.suite} {name}"] = state
        if state == "failed" and self.fails_on_ext4(name):
            state = "as ext4"
        counts = self.counts[self.suite]
        accepted = [
            pattern for row, pattern in self.deviations if row == self.suite and fnmatch.fnmatchcase(name, pattern)
        ]
        if state == "failed" and accepted:
            state = "accepted"
            self.unused[self.suite] -= set(accepted)
        counts[state] += 1
        if state == "failed":
            self.bad.append(f"{self.suite} {name}: {message}")
        elif state == "passed" and any(not re.search(r"[*?\[]", pattern) for pattern in accepted):
            self.bad.append(f"{self.suite} {name}: passed, though it is listed in {SEMANTICS.name}")
        if not quiet or state == "failed":
            print(f"{state:8} {name}" + (f": {message}" if message else ""), flush=True)

    def summary(self):
        print(f"\n{'suite':16}" + "".join(f"{state:>10}" for state in STATES) + f"{'seconds':>10}")
        for suite, counts in self.counts.items():
            print(f"{suite:16}" + "".join(f"{counts[state]:10}" for state in STATES) + f"{counts['seconds']:10.0f}")
        for line in self.bad:
            print("FAILED  " + line)
        return not self.bad


def deviations():
    """Rows (suite, pattern) of the table under the heading."""
    text = SEMANTICS.read_text().partition(HEADING)[2]
    text = re.split(r"^## ", text, flags=re.M)[0]
    return re.findall(r"^\| (\S+) \| `([^`]+)` \|", text, flags=re.M)


def load(path):
    """States that were written by `save`, or nothing when there is no such file."""
    return json.loads(path.read_text()) if path.exists() else {}


def save(path, states):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(states, indent=1, sort_keys=True) + "\n")
