"""Results of suites, and the list of accepted deviations in docs/semantics.md that they are compared with."""

import fnmatch
import pathlib
import re
import time

SEMANTICS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "semantics.md"
HEADING = "## Tests of public suites that fail"


class Report:
    """Collects what each test said. `limits` names the rows of deviations that apply to these results."""

    def __init__(self, deviations):
        self.deviations = deviations
        self.unused = {}
        self.counts = {}
        self.bad = []

    def begin(self, suite):
        self.suite = suite
        self.counts[suite] = dict(passed=0, failed=0, accepted=0, skipped=0, seconds=time.monotonic())
        self.unused[suite] = {pattern for row, pattern in self.deviations if row == suite}
        print(f"== {suite}", flush=True)

    def end(self, whole):
        """`whole`: all tests of the suite ran, so that a deviation that did not show is gone."""
        counts = self.counts[self.suite]
        counts["seconds"] = time.monotonic() - counts["seconds"]
        if whole:
            for pattern in sorted(self.unused[self.suite]):
                self.bad.append(f"{self.suite} {pattern}: is listed in {SEMANTICS.name} but did not fail")

    def result(self, name, state, message="", quiet=False):
        """`state` is passed, failed or skipped."""
        counts = self.counts[self.suite]
        accepted = [pattern for row, pattern in self.deviations if row == self.suite and fnmatch.fnmatchcase(name, pattern)]
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
        print(f"\n{'suite':16} {'passed':>7} {'failed':>7} {'accepted':>9} {'skipped':>8} {'seconds':>8}")
        for suite, counts in self.counts.items():
            print(
                f"{suite:16} {counts['passed']:7} {counts['failed']:7} {counts['accepted']:9} {counts['skipped']:8} {counts['seconds']:8.0f}"
            )
        for line in self.bad:
            print("FAILED  " + line)
        return not self.bad


def deviations():
    """Rows (suite, pattern) of the table under the heading."""
    text = SEMANTICS.read_text().partition(HEADING)[2]
    text = re.split(r"^## ", text, flags=re.M)[0]
    return re.findall(r"^\| (\S+) \| `([^`]+)` \|", text, flags=re.M)
