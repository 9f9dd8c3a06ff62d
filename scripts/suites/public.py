"""The public suites: pjdfstest, fsx, fio with verification, stress-ng. Each takes a place, a form (quick or full) and a report."""

import os
import pathlib
import re
import signal
import subprocess
import tempfile

OPTIONS = pathlib.Path(__file__).resolve().parent


def command(arguments, limit, cwd="/", environment=None):
    """Output and exit status; a program that takes longer than its limit is ended with all its children."""
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
    try:
        output, _ = process.communicate(timeout=limit)
        return output, process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return output + f"\n(ended after {limit} s)", 124


def pjdfstest(place, form, report):
    """All tests as root. Those that remount run by themselves, since others of the suite leave files open, and only in full."""
    if os.geteuid() != 0:
        report.result("pjdfstest", "failed", "has to be run as root")
        return
    for remount in (False, True) if form == "full" else (False,):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as options:
            options.write((OPTIONS / "pjdfstest.toml").read_text().replace("@remount@", str(remount).lower()))
            options.flush()
            arguments = ["pjdfstest", "-c", options.name, "-p", place.first, "-s", "/dev/shm"] + (["erofs"] if remount else [])
            output, status = command(arguments, 1800)
        output = re.sub(r"\x1b\[[0-9;]*m", "", output)
        if "Summary:" not in output:
            report.result("pjdfstest", "failed", f"gave no summary (status {status}): {output[-500:]}")
        pjdfstest_results(output, remount, report)


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
        report.result(name, states[state], re.split(r"\s+(?:stack )?[Bb]acktrace|\s+0:", message)[0], quiet=state == "ok")


FSX_PLAIN = """
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
"""


def fsx(place, form, report):
    """Random operations on one file, each read compared; a server is killed and started again every few seconds meanwhile."""
    operations, seeds = (1_000_000, (1, 2, 3)) if form == "full" else (4_000, (1,))
    forms = {
        "plain": FSX_PLAIN,
        "mapped": FSX_MAPPED,
        # Files over many chunks of all servers; the others fit into one.
        "large": "flen = 16777216\n[opsize]\nmax = 2200000\n" + FSX_PLAIN,
    }
    for name, options in forms.items():
        for seed in seeds:
            count = operations if name != "large" else operations // 50
            fsx_run(place, report, name, options, seed, count, False)
    fsx_run(place, report, "plain", FSX_PLAIN, 100, operations, True)
    fsx_run(place, report, "mapped", FSX_MAPPED, 101, operations, True)


def fsx_run(place, report, name, options, seed, count, disturbed):
    title = f"{name} seed {seed}, {count} operations" + (", servers killed" if disturbed else "")
    with tempfile.TemporaryDirectory(prefix="fsx-") as work:
        config = pathlib.Path(work) / "fsx.toml"
        config.write_text(options)
        target = place.first / f"fsx-{name}-{seed}"
        arguments = ["fsx", "-f", config, "-N", count, "-S", seed, "-P", work, target]
        if disturbed:
            with place.disturbed():
                output, status = command(arguments, 1800)
        else:
            output, status = command(arguments, 1800)
    if status == 0:
        target.unlink()
        report.result(title, "passed")
    else:
        report.result(title, "failed", f"status {status}: " + output.strip()[-3000:])


def fio(place, form, report):
    """Written with checksums and read back: sequential, random, mixed block sizes, 8 jobs, direct and not."""
    size = "64m" if form == "full" else "4m"
    for direct in (0, 1):
        for pattern in ("write", "randwrite", "randrw"):
            for blocks in ("4k-4k", "128k-128k", "512-1m"):
                name = f"{pattern} {blocks} direct={direct}"
                directory = place.first / "fio"
                directory.mkdir(exist_ok=True)
                output, status = command(
                    ["fio", "--name=verify", f"--directory={directory}", f"--rw={pattern}", f"--bsrange={blocks}", f"--size={size}",
                     "--numjobs=8", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", f"--direct={direct}", "--ioengine=psync",
                     "--group_reporting", "--thread", "--fallocate=none", "--norandommap=0", "--unlink=1", "--randseed=1"],
                    900,
                )
                good = status == 0 and "err= 0" in output
                report.result(name, "passed" if good else "failed", "" if good else f"status {status}: " + output[-1500:])


# Those of stress-ng 0.15 that ext4 survives, as root, and that work on files below --temp-path.
STRESSORS = """access aio chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fanotify fcntl fiemap
    file-ioctl filename flock fpunch fstat getdent handle hdd inode-flags inotify io iomix lease link locka lockf lockofd
    mknod msync open readahead rename revio seek sendfile symlink sync-file touch utime verity xattr""".split()
QUICK_STRESSORS = """access chmod chown copy-file dentry dir dirmany fallocate fcntl flock fpunch fstat getdent hdd iomix link locka
    lockf lockofd open rename seek sendfile symlink touch utime xattr""".split()


def stress(place, form, report):
    """stress-ng's stressors of file systems, one after the other, with its own verification."""
    seconds, stressors = (60, STRESSORS) if form == "full" else (2, QUICK_STRESSORS)
    seconds = int(os.environ.get("TABANE_SUITES_STRESS_SECONDS", seconds))
    for stressor in stressors:
        directory = place.first / "stress"
        directory.mkdir(exist_ok=True)
        output, status = command(
            ["stress-ng", f"--{stressor}", "2", "-t", f"{seconds}s", "--verify", "--temp-path", directory, "--metrics-brief"],
            seconds * 3 + 120,
        )
        # 3: no resources, 4: not implemented here. Both are said, and neither is a pass.
        state = "passed" if status == 0 else "skipped" if status in (3, 4) else "failed"
        message = "" if status == 0 else f"status {status}: " + " / ".join(
            line for line in output.splitlines() if re.search(r"fail|error|ended after|not supp|skip|unexpect", line, re.I)
        )[-1500:]
        report.result(stressor, state, message)
        command(["rm", "-rf", directory], 300)


SUITES = {"pjdfstest": pjdfstest, "fsx": fsx, "fio": fio, "stress-ng": stress}
