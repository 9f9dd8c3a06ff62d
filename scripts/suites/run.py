#!/usr/bin/env python3
"""Public test suites and ordinary programs judge the mount.

    run.py quick|full [--programs DIRECTORY] [SUITE[:TEST]]...     on two mounts of a cluster of its own; with --backing
                                                                   over a populated backing directory
    run.py quick|full --ext4 [SUITE[:TEST]]...                     on an ext4 image: what passes there has to pass here
    run.py quick|full --directories A B [SUITE[:TEST]]...          on any two views of one file system

Suites: pjdfstest, fsx, fio, stress-ng, two-mounts, programs; all, unless some are named; TEST may be a pattern. A
failure that docs/semantics.md lists is accepted; one that it does not list fails the run, and so does one that it lists
and that did not happen.

The full form takes hours. It runs pjdfstest and stress-ng on ext4 first (--reference FILE keeps what came of that for
the next time): what ext4 fails is not asked of a mount. --lanes N runs as many tests of fsx, fio and stress-ng at
once."""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import places
import programs
import public
import report as reports
import two_mounts

ROOT = pathlib.Path(__file__).resolve().parents[2]


def own_tests(module, run):
    """Each test in a process of its own with a limit of time, in an empty directory."""
    # The limit is there for what hangs: on a machine that others share, the same test takes up to nine times as long as
    # a quarter of an hour before.
    scale, limit = ("8", 6 * 3600) if run.form == "full" else ("1", 900)
    place, report = run.place, run.report
    for test in module.TESTS:
        if not run.wants(test.__name__):
            continue
        name = f"test-{test.__name__}"
        os.mkdir(place.first / name)
        begun = time.monotonic()
        output, status = public.command(
            [sys.executable, "-B", module.__file__, place.first / name, place.second / name, scale, test.__name__],
            limit,
        )
        message = "" if status == 0 else output.strip()[-3000:]
        state = "passed" if status == 0 else "skipped" if status == 77 else "failed"
        report.result(test.__name__, state, message or f"{time.monotonic() - begun:.1f} s")
        if state != "failed":
            shutil.rmtree(place.first / name, ignore_errors=True)


def suites():
    found = dict(public.SUITES)
    for name, module in {"two-mounts": two_mounts, "programs": programs}.items():
        found[name] = lambda run, module=module: own_tests(module, run)
    return found


# What is run on ext4 before the full form: in these the file system itself decides what is possible.
ON_EXT4 = ("pjdfstest", "stress-ng")


def states_on_ext4(options, wanted):
    """What the same tests say on ext4, run now unless they have been."""
    if options.form != "full" or options.ext4 or options.directories:
        return {}
    known = reports.load(options.reference)
    missing = {
        suite: tests for suite, tests in wanted.items()
        if suite in ON_EXT4 and not any(key.startswith(f"{suite} ") for key in known)
    }
    if missing:
        print("== on ext4 first", flush=True)
        report = reports.Report([])
        with places.Ext4() as place:
            for suite in missing:
                report.begin(suite)
                public.SUITES[suite](public.Run(place, options.form, report, [], options.lanes))
                report.end(whole=False)
        report.summary()
        known |= report.states
        reports.save(options.reference, known)
    return known


def place_of(options):
    if options.directories:
        return places.Directories(*options.directories)
    if options.ext4:
        return places.Ext4()
    if not os.path.exists("/dev/fuse"):
        if os.environ.get("TABANE_CI_NO_FUSE") == "1":
            print("suites: there is no /dev/fuse, and TABANE_CI_NO_FUSE=1 is set: nothing is tested")
            sys.exit(0)
        print("suites: there is no /dev/fuse, so nothing can be mounted; TABANE_CI_NO_FUSE=1 leaves these tests out",
              file=sys.stderr)
        sys.exit(1)
    return places.Mounts(options.programs, options.store, options.backing)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=["quick", "full"])
    parser.add_argument("suites", nargs="*", metavar="SUITE[:TEST]")
    parser.add_argument("--programs", default=ROOT / "target" / "release", help="where `tabane` is")
    parser.add_argument("--tools", default=ROOT / "target" / "suites",
                        help="where pjdfstest and fsx are, or come to be")
    parser.add_argument("--store", default="memory:size=2G")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--reference", type=pathlib.Path,
                        help="what ext4 says to the full form (default: ext4.json beside the tools)")
    parser.add_argument("--backing", action="store_true", help="the cluster is over a populated backing directory")
    parser.add_argument("--ext4", action="store_true")
    parser.add_argument("--directories", nargs=2, metavar="DIRECTORY")
    options = parser.parse_intermixed_args()
    options.reference = options.reference or pathlib.Path(options.tools) / "ext4.json"

    known = suites()
    wanted = {}
    for entry in options.suites or known:
        suite, _, test = entry.partition(":")
        if suite not in known:
            parser.error(f"there is no suite {suite}; there are {', '.join(known)}")
        wanted.setdefault(suite, []).extend([test] if test else [])

    # So that the mounts are taken away then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    place = place_of(options)
    subprocess.run(["sh", str(ROOT / "scripts" / "suites" / "tools.sh"), str(options.tools)], check=True)
    os.environ["PATH"] = f"{pathlib.Path(options.tools).resolve() / 'bin'}:{os.environ['PATH']}"
    ext4 = states_on_ext4(options, wanted)
    with place:
        report = reports.Report(reports.deviations() if place.kind == "mounts" else [], ext4)
        for suite, tests in wanted.items():
            report.begin(suite)
            known[suite](public.Run(place, options.form, report, tests, options.lanes))
            fault = place.healthy()
            if fault:
                report.result("(check after the suite)", "failed", fault)
            report.end(whole=not tests and options.form == "full")
        good = report.summary()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
