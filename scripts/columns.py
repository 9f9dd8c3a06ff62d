#!/usr/bin/env python3
"""Lists each line of more than 120 columns in tracked files, as FILE:LINE: N columns. Ends with 1 if there is any.

    scripts/columns.py

Columns are characters, not bytes. Rust, Markdown, shell, Python, modules of JavaScript, makefiles and .ci/run are
looked at. What may be longer nevertheless stands in `may_be_longer`, and nowhere else.
"""
import os
import re
import subprocess
import sys

COLUMNS_MAX = 120
ENDINGS = (".rs", ".md", ".sh", ".py", ".mjs", "/Makefile", "/.ci/run")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Blocks of Markdown that show what a program has printed; those in "console" show commands too.
PRINTED = ["", "text", "json", "console"]
LINK = r"\s*([-*] )?(\S*\[[^]]*\]\(\S+\)\S*|<?\w+://\S+)"


def may_be_longer(path, line, block):
    """Whether a line can't be broken, or isn't ours. `block`: what a block of Markdown is in, None outside of one."""
    if path == "docs/commands.md":
        return True  # `tabane help --markdown` has printed it.
    if path.startswith("crates/") and ("/fixtures/" in path or "/corpora/" in path):
        return True
    if not path.endswith(".md"):
        return False
    if block is not None:
        return block in PRINTED and not (block == "console" and line.lstrip().startswith(("$ ", "> ")))
    # Rows of tables, and links that stand alone.
    return line.lstrip().startswith("|") or re.fullmatch(LINK, line) is not None


def lines_of(path):
    """Number, text and block of each line."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    block = fence = None
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"\s*(```+)(.*)", line) if path.endswith(".md") else None
        if mark and block is None:
            fence, block = mark.group(1), mark.group(2).strip().split(",")[0]
        elif mark and mark.group(1) == fence and not mark.group(2).strip():
            block = None
        yield number, line, block


def main():
    if not os.path.exists(os.path.join(ROOT, ".git")):
        print("columns: this is no repository, so no file is tracked, and none is looked at")
        return 0
    tracked = subprocess.check_output(["git", "-C", ROOT, "ls-files", "-z"], text=True).split("\0")
    found = 0
    for path in tracked:
        # One that is tracked may have been removed, and not committed yet.
        if not f"/{path}".endswith(ENDINGS) or not os.path.isfile(os.path.join(ROOT, path)):
            continue
        for number, line, block in lines_of(path):
            if len(line) > COLUMNS_MAX and not may_be_longer(path, line, block):
                print(f"{path}:{number}: {len(line)} columns")
                found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
