#!/usr/bin/env python3
"""Checks the book (docs/, README.md, HACKING.md) and runs every command that it shows.

    book.py check                           contents, links, pictures, and the language of every block
    book.py run --programs DIRECTORY [CHAPTER...]      and the commands, chapter by chapter

How blocks are written:

    ```console              lines that begin with "$ " are commands ("> " continues one), the others what they print.
                            Where something is shown it is compared: "..." stands for anything, on a line of its own for
                            any lines.
    ```sh                   a script, run as a whole
    ```console,fails        its last command fails; what it says is compared
    ```console,ignore-because=words-with-hyphens       is not run, and this is why
    ```text and others      are no commands
    <!-- run: command -->   is run and not shown: what a reader would have at this point

The blocks of a chapter are run one after the other by one shell, in a directory of their own, with a home and a run
directory of their own; CHECKOUT is the source tree, PROGRAMS the programs. A chapter has to leave no cluster and no
mount.
"""

import argparse
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs"
# What a batch system would be asked, and ssh: here all nodes are this machine.
STAND_INS = ROOT / "scripts/stand-ins"
OUTSIDE = ["README.md", "HACKING.md", "ARCHITECTURE.md", "CHANGELOG.md"]
RUNNABLE = ["console", "sh"]
SHOWN_ONLY = ["text", "c", "toml", "json", "ini", "rust", "makefile"]
# Time for what a chapter has ended to be gone.
ENDING_SECONDS_MAX = 10
COMMAND_SECONDS_MAX = 900
IGNORED_MAX = 30


class Block:
    """One fenced block, or a hidden command."""

    def __init__(self, chapter, line, words, lines):
        self.chapter, self.line, self.lines = chapter, line, lines
        self.language, *self.attributes = words.split(",")

    def place(self):
        return f"{self.chapter}:{self.line}"

    def reason_to_ignore(self):
        for attribute in self.attributes:
            if attribute.startswith("ignore-because="):
                return attribute.split("=", 1)[1].replace("-", " ")
        return None

    def steps(self):
        """(command, lines that it shall print or None) one after the other."""
        if self.language in ("sh", "run"):
            return [("\n".join(self.lines), None)]
        steps = []
        for line in self.lines:
            if line.startswith("$ "):
                steps.append([[line[2:]], []])
            elif line.startswith("> ") and steps and not steps[-1][1]:
                steps[-1][0].append(line[2:])
            elif steps:
                steps[-1][1].append(line)
        return [("\n".join(command), shown or None) for command, shown in steps]


def blocks_of(path):
    """The blocks of a Markdown file, hidden commands among them, and its lines outside of blocks with their numbers."""
    name = str(path.relative_to(ROOT))
    blocks, prose, inside = [], [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = re.match(r"^( *)(```+)(.*)$", line)
        if inside is None and fence:
            inside = (number, len(fence.group(1)), fence.group(2), fence.group(3).strip(), [])
        elif inside is not None and fence and fence.group(2) == inside[2] and not fence.group(3).strip():
            blocks.append(Block(name, inside[0], inside[3], inside[4]))
            inside = None
        elif inside is not None:
            inside[4].append(line[inside[1]:] if not line[:inside[1]].strip() else line)
        else:
            hidden = re.match(r"^<!-- run: (.*) -->$", line)
            if hidden:
                blocks.append(Block(name, number, "run", [hidden.group(1)]))
            prose.append((number, line))
    if inside is not None:
        raise SystemExit(f"book: {name}:{inside[0]}: this block has no end")
    return blocks, prose


def chapters():
    """The files of the book in the order of its contents."""
    found = re.findall(r"\]\(([^)]+\.md)\)", (BOOK / "SUMMARY.md").read_text())
    return [BOOK / name for name in found]


def anchor(heading):
    """The id that mdBook gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain))


def anchors_of(path):
    text = path.read_text()
    for included in re.findall(r"\{\{#include ([^}:]+)\}\}", text):
        text += (path.parent / included).read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {anchor(heading) for heading in headings}


def check_links(path, prose, complain):
    # In the book only files below docs/ are there to be linked to.
    name = path.relative_to(ROOT)
    for number, line in prose:
        if re.match(r"^ {4,}\S", line) and "](" not in line:
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"^[a-z]+:", target):
                continue
            file, _, part = target.partition("#")
            other = (path.parent / file).resolve() if file else path
            if not other.exists():
                complain(f"{name}:{number}: {target} is not there")
            elif path.parent == BOOK and BOOK not in [other, *other.parents]:
                complain(f"{name}:{number}: {target} lies outside of docs/, where the book can't follow")
            elif part and other.suffix == ".md" and part not in anchors_of(other):
                complain(f"{name}:{number}: there is no heading #{part} in {other.name}")


def check_blocks(path, blocks, prose, complain):
    name = path.relative_to(ROOT)
    for block in blocks:
        if block.language == "run":
            continue
        if block.language not in RUNNABLE + SHOWN_ONLY:
            complain(f"{block.place()}: a block in \"{block.language}\"; known are {', '.join(RUNNABLE + SHOWN_ONLY)}")
        for attribute in block.attributes:
            if attribute != "fails" and not re.match(r"ignore-because=\S+-\S+$", attribute):
                complain(f"{block.place()}: {attribute} is not known; a reason has several words, with hyphens between")
        if block.language == "console" and not block.steps():
            complain(f"{block.place()}: no line begins with \"$ \"")
    # A command in an indented block would never be run.
    before = ""
    for number, line in prose:
        if re.match(r"^ {4}\S", line) and not before.strip() and not re.match(r"^ {4}[-*|] ", line):
            complain(f"{name}:{number}: an indented block; write ```console, ```sh or ```text around it")
        before = line if line.strip() and not line.startswith("    ") else before if line.startswith("    ") else ""


def check():
    complaints = []
    complain = complaints.append
    listed = chapters()
    for path in listed:
        if not path.exists():
            complain(f"docs/SUMMARY.md: {path.relative_to(BOOK)} is not there")
    for path in sorted(BOOK.rglob("*.md")):
        if path not in listed and path.name != "SUMMARY.md":
            complain(f"docs/SUMMARY.md: {path.relative_to(BOOK)} is in no chapter")
    for path in [path for path in listed if path.exists()] + [ROOT / name for name in OUTSIDE]:
        blocks, prose = blocks_of(path)
        check_links(path, prose, complain)
        check_blocks(path, blocks, prose, complain)
        for included in re.findall(r"\{\{#include ([^}:]+)", path.read_text()):
            if not (path.parent / included).exists():
                complain(f"{path.relative_to(ROOT)}: {included}, which it includes, is not there")
    pictures = sorted(BOOK.rglob("*.svg"))
    texts = "\n".join(path.read_text() for path in BOOK.rglob("*.md"))
    for picture in pictures:
        name = picture.relative_to(BOOK)
        xml.etree.ElementTree.parse(picture)
        if str(name) not in texts:
            complain(f"docs/{name} is in no chapter")
    for complaint in complaints:
        print(f"book: {complaint}", file=sys.stderr)
    print(f"book: {len(listed)} chapters and {len(pictures)} pictures checked, {len(complaints)} complaints")
    return not complaints


class Shell:
    """One bash that runs commands one after the other and keeps their directory and variables."""

    def __init__(self, place, environment):
        self.place = place
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=place / "work", env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.count = 0

    def run(self, command):
        """(exit status, output). The status is None when the command did not end in time."""
        self.count += 1
        script = self.place / f"command-{self.count}"
        script.write_text(command + "\n")
        mark = f"--- end of command {self.count} of {os.getpid()}:"
        self.process.stdin.write(f"source '{script}' </dev/null; printf '\\n{mark} %d\\n' $?\n".encode())
        self.process.stdin.flush()
        output = b""
        deadline = time.monotonic() + COMMAND_SECONDS_MAX
        while True:
            found = re.search(rb"\n" + re.escape(mark.encode()) + rb" (\d+)\n", output)
            if found:
                return int(found.group(1)), output[:found.start()].decode(errors="replace")
            left = deadline - time.monotonic()
            if left <= 0 or not self.selector.select(left):
                return None, output.decode(errors="replace")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                return None, output.decode(errors="replace")
            output += chunk

    def running(self):
        """What was started from it and still runs."""
        session = self.process.pid
        running = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else None
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") if fields else ""
            except OSError:
                continue
            if fields and int(fields[3]) == session and int(entry.name) != session and fields[0] != "Z":
                running.append((int(entry.name), words.strip()))
        return running

    def end(self):
        """Ends everything that was started from it; tells what did not end by itself: launchers outlive their servers
        by a moment."""
        limit = time.monotonic() + ENDING_SECONDS_MAX
        left = self.running()
        while left and time.monotonic() < limit:
            time.sleep(0.05)
            left = self.running()
        for process, _ in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.wait()
        self.selector.close()
        return left


def pattern_of(line):
    """A shown line as an expression: blanks count once, "..." is anything."""
    parts = [re.escape(re.sub(r"\s+", " ", part)).replace("\\ ", " ") for part in line.split("...")]
    return ".*".join(parts)


def fits(shown, output):
    """Whether lines that were printed are as shown."""
    printed = [re.sub(r"\s+", " ", line).strip() for line in output.rstrip().splitlines()]
    rows = {0}
    for line in shown:
        if line.strip() == "...":
            rows = {row for first in rows for row in range(first, len(printed) + 1)}
        else:
            pattern = re.compile(pattern_of(line.strip()))
            rows = {row + 1 for row in rows if row < len(printed) and pattern.fullmatch(printed[row])}
    return len(printed) in rows


def run_block(block, shell):
    """None, or what is wrong with it."""
    steps = block.steps()
    for index, (command, shown) in enumerate(steps):
        status, output = shell.run(command)
        last = index == len(steps) - 1
        wanted_failure = last and "fails" in block.attributes
        if status is None:
            return f"{block.place()}: $ {command}\ndid not end within {COMMAND_SECONDS_MAX} s; it printed\n{output}"
        if (status != 0) != wanted_failure:
            return f"{block.place()}: $ {command}\nends with status {status}; it printed\n{output}"
        if shown and not fits(shown, output):
            return f"{block.place()}: $ {command}\nprints\n{output.rstrip()}\nwhere the book shows\n" + "\n".join(shown)
    return None


def environment_for(place, programs):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("TABANE_", "CHFS_", "XDG_"))
                   and name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    home = Path(os.environ.get("HOME", "/"))
    if programs.name == "release":
        environment["CARGO_TARGET_DIR"] = str(programs.parent)
    environment.update(
        HOME=str(place / "home"), XDG_RUNTIME_DIR=str(place / "runtime"), CHECKOUT=str(ROOT), PROGRAMS=str(programs),
        CARGO_HOME=os.environ.get("CARGO_HOME", str(home / ".cargo")),
        RUSTUP_HOME=os.environ.get("RUSTUP_HOME", str(home / ".rustup")),
        PATH=f"{place / 'home/.local/bin'}:{programs}:{STAND_INS}:{os.environ['PATH']}", LC_ALL="C.UTF-8", NO_COLOR="1")
    return environment


def unmount_below(place):
    """Takes mounts out of the tree that a chapter has left; tells which."""
    left = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        target = line.split()[1].encode().decode("unicode_escape")
        if target.startswith(str(place)):
            left.append(target)
            subprocess.run(["umount", "-l", target], check=False)
    return left


def run_chapter(path, programs):
    """(commands run, blocks not run, complaint or None)"""
    blocks, _ = blocks_of(path)
    blocks = [block for block in blocks if block.language in RUNNABLE + ["run"]]
    if all(block.language == "run" for block in blocks):
        return 0, [], None
    place = Path(tempfile.mkdtemp(prefix="tabane-book-"))
    for directory in ("work", "home", "runtime"):
        (place / directory).mkdir(mode=0o700)
    shell = Shell(place, environment_for(place, programs))
    ran, ignored, complaint = 0, [], None
    for block in blocks:
        reason = block.reason_to_ignore()
        if reason:
            ignored.append((block, reason))
            continue
        complaint = run_block(block, shell)
        if complaint:
            break
        ran += len(block.steps())
    if complaint:
        # What a reader would do next; ends mounts too.
        subprocess.run(["tabane", "down"], env=environment_for(place, programs), stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=COMMAND_SECONDS_MAX, check=False)
    left = shell.end()
    mounts = unmount_below(place)
    name = path.relative_to(ROOT)
    if not complaint and left:
        complaint = f"{name}: left running: " + "; ".join(words for _, words in left)
    if not complaint and mounts:
        complaint = f"{name}: left mounted: " + ", ".join(mounts)
    shutil.rmtree(place, ignore_errors=True)
    return ran, ignored, complaint


def run(programs, wanted):
    files = [path for path in [ROOT / "README.md", ROOT / "HACKING.md", *chapters()] if path.exists()]
    if wanted:
        files = [path for path in files if path.stem in wanted or str(path.relative_to(ROOT)) in wanted]
        if not files:
            raise SystemExit(f"book: no chapter is called {' or '.join(wanted)}")
    total, ignored, failed = 0, [], []
    for path in files:
        begun = time.monotonic()
        count, left_out, complaint = run_chapter(path, programs)
        total += count
        ignored += left_out
        if complaint:
            failed.append(complaint)
        if count or left_out or complaint:
            words = "FAILED" if complaint else "ok"
            print(f"book: {path.relative_to(ROOT)}: {words}, {count} commands, {len(left_out)} blocks not run, "
                  f"{time.monotonic() - begun:.1f} s", flush=True)
    for block, reason in ignored:
        print(f"book: {block.place()}: not run: {reason}")
    for complaint in failed:
        print(f"book: {complaint}", file=sys.stderr)
    if len(ignored) > IGNORED_MAX:
        failed.append("")
        print(f"book: {len(ignored)} blocks are not run; they shall be few, {IGNORED_MAX} at most", file=sys.stderr)
    print(f"book: {total} commands run, {len(ignored)} blocks not run, {len(failed)} failures")
    return not failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["check", "run"])
    parser.add_argument("--programs", type=Path, default=ROOT / "target/release",
                        help="directory with tabane and tabane-bench")
    parser.add_argument("chapter", nargs="*")
    arguments = parser.parse_intermixed_args()
    if arguments.action == "check":
        return check()
    programs = arguments.programs.resolve()
    if not (programs / "tabane").exists():
        raise SystemExit(f"book: {programs}/tabane is not there; run make build first, or name its directory with "
                         "--programs")
    return run(programs, arguments.chapter)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
