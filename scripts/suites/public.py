"""The public suites: pjdfstest, fsx, fio with verification, stress-ng. Each takes a `Run`: a place, a form (quick or
full), a report, which of its tests are wanted, and how many of them may run at once."""

import concurrent.futures
import dataclasses
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

OPTIONS = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass
class Run:
    """What a suite is run with. `wanted` are names or patterns of tests; all, when there are none."""

    place: object
    form: str
    report: object
    wanted: list
    lanes: int = 1

    def wants(self, name):
        return not self.wanted or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.wanted)

    def at_once(self, tests):
        """Runs tests, pairs of a name and a function, as many at once as there are lanes. What one of them raises is
        raised."""
        with concurrent.futures.ThreadPoolExecutor(self.lanes) as pool:
            try:
                for told in [pool.submit(test) for name, test in tests if self.wants(name)]:
                    told.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise


RUNNING = set()


def end_all():
    """Ends whatever runs, for the end of all."""
    for process in list(RUNNING):
        os.killpg(process.pid, signal.SIGKILL)


# How long a program may rest, all its processes together, before it counts as hung; seconds.
SILENCE = 900
LOOK = 5


def processor_time(session):
    """Clock ticks that the processes of a session have used so far, and those that they have waited for."""
    ticks = 0
    for entry in os.scandir("/proc"):
        try:
            facts = (
                pathlib.Path(entry.path, "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
            )
        except OSError:
            continue
        if facts and int(facts[3]) == session:
            ticks += sum(int(fact) for fact in facts[11:15])
    return ticks


def command(arguments, limit, cwd="/", environment=None):
    """Output and exit status. A program that rests for `SILENCE`, or takes longer than `limit` seconds, is ended with
    all its children. Without a limit it may take as long as the machine and whoever shares it make it."""
    process = subprocess.Popen(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    RUNNING.add(process)
    begun, used, rested = time.monotonic(), 0, 0
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=LOOK)
                return output, process.returncode
            except subprocess.TimeoutExpired:
                pass
            before, used = used, processor_time(process.pid)
            # Looks are counted, not seconds: when this program has to wait for the processor, so has the other one.
            rested = 0 if used != before else rested + LOOK
            if rested >= SILENCE:
                words = f"nothing was done for {rested} s"
            elif limit is not None and time.monotonic() - begun > limit:
                words = f"took longer than {limit} s"
            else:
                continue
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return output + f"\n(ended: {words})", 124
    except BaseException:
        # So that nobody is left in what is unmounted then.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    finally:
        RUNNING.discard(process)


def pjdfstest(run):
    """All tests as root. Those that remount run by themselves, since others of the suite leave files open, and only in
    full."""
    if os.geteuid() != 0:
        run.report.result("pjdfstest", "failed", "has to be run as root")
        return
    for remount in (False, True) if run.form == "full" else (False,):
        with tempfile.TemporaryDirectory(prefix="pjdfstest-") as work:
            options = pathlib.Path(work) / "pjdfstest.toml"
            options.write_text((OPTIONS / "pjdfstest.toml").read_text().replace("@remount@", str(remount).lower()))
            # The suite remounts by mount(8), which leaves FUSE to a helper that can only mount. -i: by mount(2) itself.
            wrapper = pathlib.Path(work) / "mount"
            wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("mount")} -i "$@"\n')
            wrapper.chmod(0o755)
            environment = dict(os.environ, PATH=f"{work}:{os.environ['PATH']}")
            arguments = ["pjdfstest", "-c", options, "-p", run.place.first, "-s", "/dev/shm"] + (
                ["erofs"] if remount else []
            )
            output, status = command(arguments, None if run.form == "full" else 1800, environment=environment)
        output = re.sub(r"\x1b\[[0-9;]*m", "", output)
        if "Summary:" not in output:
            run.report.result("pjdfstest", "failed", f"gave no summary (status {status}): {output[-500:]}")
        pjdfstest_results(output, remount, run.report)


def pjdfstest_results(output, remount, report):
    lines = output.splitlines()
    for at, line in enumerate(lines):
        found = re.fullmatch(r"(\S+::\S+) +(ok|FAILED|skipped)", line)
        if not found:
            continue
        name, state = found.groups()
        message = " ".join(lines[at + 1 : at + 4]).strip() if state == "FAILED" else ""
        if "::erofs_" in name and not remount:
            continue
        states = {"ok": "passed", "FAILED": "failed", "skipped": "skipped"}
        report.result(
            name, states[state], re.split(r"\s+(?:stack )?[Bb]acktrace|\s+0:", message)[0], quiet=state == "ok"
        )


# `min`: by default fsx asks for ranges of 0 bytes too, which posix_fallocate(3) refuses on any file system.
FSX_PLAIN_WEIGHTS = """
[weights]
close_open = 1.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 2.0
punch_hole = 2.0
sendfile = 2.0
posix_fadvise = 1.0
copy_file_range = 2.0
mapread = 0.0
mapwrite = 0.0
"""
FSX_PLAIN = "[opsize]\nmin = 1\n" + FSX_PLAIN_WEIGHTS
# Files over many chunks of all servers; the others fit into one.
FSX_LARGE = "flen = 16777216\n[opsize]\nmin = 1\nmax = 2200000\n" + FSX_PLAIN_WEIGHTS
FSX_MAPPED = """
[weights]
close_open = 1.0
invalidate = 1.0
read = 10.0
write = 10.0
mapread = 5.0
mapwrite = 5.0
truncate = 5.0
fsync = 0.2
punch_hole = 1.0
[opsize]
max = 16384
"""


# Operations of one process of fsx that maps. 0.3.2 never unmaps what it has read through a mapping (`domapread`): after
# vm.max_map_count of these, 65,530 by default, mmap(2) gives it ENOMEM on any file system, and long before each cut has
# to walk through all mappings.
FSX_MAPPED_PIECE = 50_000


def fsx(run):
    """Random operations on one file, each read compared; in the last two a server is killed and started again every few
    seconds."""
    operations, seeds = (1_000_000, (1, 2, 3)) if run.form == "full" else (4_000, (1,))
    operations = int(os.environ.get("TABANE_SUITES_FSX_OPERATIONS", operations))
    forms = {"plain": FSX_PLAIN, "mapped": FSX_MAPPED, "large": FSX_LARGE}
    tests = []
    for seed in seeds:
        for name, options in forms.items():
            count = operations if name != "large" else operations // 50
            tests.append(fsx_test(run, name, options, seed, count, False))
    run.at_once(tests)
    disturbed = [
        fsx_test(run, "plain", FSX_PLAIN, 100, operations, True),
        fsx_test(run, "mapped", FSX_MAPPED, 101, operations, True),
    ]
    if any(run.wants(title) for title, _ in disturbed):
        with run.place.disturbed():
            run.at_once(disturbed)
        run.report.note(f"servers were killed {getattr(run.place, 'kills', 0)} times")


def fsx_test(run, name, options, seed, count, disturbed):
    title = f"{name} seed {seed}, {count} operations" + (", servers killed" if disturbed else "")
    return title, lambda: fsx_run(run, title, f"fsx-{name}-{seed}", options, seed, count)


def fsx_run(run, title, file, options, seed, count):
    target = run.place.first / file
    piece_size = FSX_MAPPED_PIECE if options == FSX_MAPPED else count
    for piece in range(-(-count // piece_size)):
        with tempfile.TemporaryDirectory(prefix="fsx-") as work:
            config = pathlib.Path(work) / "fsx.toml"
            config.write_text(options)
            # The first piece has the seed itself.
            part, own_seed = min(piece_size, count - piece * piece_size), seed + 1000 * piece
            arguments = ["fsx", "-f", config, "-N", part, "-S", own_seed, "-P", work, target]
            output, status = command(arguments, None if run.form == "full" else 1800)
        if status != 0:
            run.report.result(title, "failed", f"seed {own_seed}: status {status}: " + output.strip()[-3000:])
            return
        target.unlink()
    run.report.result(title, "passed")


def fio(run):
    """Written with checksums and read back: sequential, random, mixed block sizes, 8 jobs, direct and not."""
    patterns = [
        (pattern, blocks) for pattern in ("write", "randwrite", "randrw") for blocks in ("4k-4k", "128k-128k", "512-1m")
    ]
    tests = [
        (f"{pattern} {blocks} direct={direct}", pattern, blocks, direct)
        for direct in (0, 1) for pattern, blocks in patterns
    ]
    run.at_once((name, lambda name=name, how=how: fio_run(run, name, *how)) for name, *how in tests)


def fio_run(run, name, pattern, blocks, direct):
    # Of each of the 8 jobs; so many lanes and no more fit into a small store.
    size = "32m" if run.form == "full" else "4m"
    directory = run.place.first / ("fio-" + re.sub(r"\W", "-", name))
    directory.mkdir()
    output, status = command(
        ["fio", "--name=verify", f"--directory={directory}", f"--rw={pattern}", f"--bsrange={blocks}", f"--size={size}",
         "--numjobs=8", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", f"--direct={direct}",
         "--ioengine=psync", "--group_reporting", "--thread", "--fallocate=none", "--norandommap=0", "--unlink=1",
         "--randseed=1"],
        None if run.form == "full" else 900,
    )
    good = status == 0 and "err= 0" in output
    run.report.result(name, "passed" if good else "failed", "" if good else f"status {status}: " + output[-1500:])
    if good:
        shutil.rmtree(directory, ignore_errors=True)


# All of stress-ng 0.15's class `filesystem`, without those that know one certain file system only (binderfs, procfs),
# and what else it has that works on files below --temp-path.
STRESSORS = """access aio bind-mount chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup eventfd
    fallocate fanotify fcntl fiemap file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify
    io iomix ioprio lease link locka lockf lockofd mknod msync open readahead rename revio seek sendfile splice symlink
    sync-file touch utime verity xattr""".split()
QUICK_STRESSORS = """access chmod chown copy-file dentry dir dirmany fallocate fcntl flock fpunch fstat getdent hdd
    iomix link locka lockf lockofd open rename seek sendfile symlink touch utime xattr""".split()
# So that several at once fit into a small store: the defaults are 1 GiB for an instance of some.
STRESS_SIZES = [f"--{name}-bytes={size}" for name, size in dict(
    fallocate="64m", hdd="64m", iomix="64m", readahead="64m", fiemap="16m", msync="16m", dirdeep="0").items()]
STRESS_SIZES += ["--copy-file-bytes=128m", "--sync-file-bytes=16m", "--seek-size=16m"]


def stress(run):
    """stress-ng's stressors of file systems with its own verification. Those that ext4 does not survive here are left
    out."""
    seconds, stressors = (60, STRESSORS) if run.form == "full" else (2, QUICK_STRESSORS)
    seconds = int(os.environ.get("TABANE_SUITES_STRESS_SECONDS", seconds))
    run.at_once((stressor, lambda stressor=stressor: stress_run(run, stressor, seconds)) for stressor in stressors)


def stress_run(run, stressor, seconds):
    if run.report.fails_on_ext4(stressor):
        run.report.result(stressor, "left out", "ext4 does not survive it here")
        return
    directory = run.place.first / f"stress-{stressor}"
    directory.mkdir(exist_ok=True)
    output, status = command(
        ["stress-ng", f"--{stressor}", "2", "-t", f"{seconds}s", "--verify", "--temp-path", directory,
         "--metrics-brief", *STRESS_SIZES],
        None if run.form == "full" else seconds * 5 + 1500,
    )
    # 3: no resources, 4: not implemented here. Both are said, and neither is a pass.
    state = "passed" if status == 0 else "skipped" if status in (3, 4) else "failed"
    message = "" if status == 0 else f"status {status}: " + " / ".join(
        line for line in output.splitlines()
        if re.search(r"fail|error|ended:|not supp|skip|unexpect|not impl", line, re.I)
    )[-1500:]
    run.report.result(stressor, state, message)
    command(["rm", "-rf", directory], 600)


SUITES = {"pjdfstest": pjdfstest, "fsx": fsx, "fio": fio, "stress-ng": stress}
