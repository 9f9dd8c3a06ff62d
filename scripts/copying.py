#!/usr/bin/env python3
"""What copying alone allows: one core copies a buffer into fresh parts of a large one, with nothing around it.

The other side of `tabane-bench async`, whose large calls copy out of the caller's buffer: see docs/experiments.md.
Usage: copying.py [TURNS]. MiB a second by the size of a call, the best and the median of the turns (default 9); and of
calls that copy 128 KiB out of a large buffer, by how far the target lies behind the source, both counted within their
pages.
"""

import ctypes
import mmap
import statistics
import sys
import time

MIB = 1 << 20
VOLUME = 512 * MIB


def rates(size, target, turns):
    """MiB a second of each turn, with a buffer of `size` bytes written again and again, as the experiment does."""
    buffer = bytes(b"\x5a") * size
    for _ in range(turns):
        start = time.perf_counter()
        for offset in range(0, VOLUME, size):
            target[offset : offset + size] = buffer
        yield VOLUME / MIB / (time.perf_counter() - start)


def rates_at(distance, source, target, turns):
    """MiB a second of each turn: 128 KiB at a time out of `source`, to `distance` bytes into a page."""
    size = 128 << 10
    base = [ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (source, target)]
    for _ in range(turns):
        start = time.perf_counter()
        for offset in range(0, VOLUME, size):
            ctypes.memmove(base[1] + distance, base[0] + offset, size)
        yield VOLUME / MIB / (time.perf_counter() - start)


def main():
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    # Written once before, so that no page is new.
    target = memoryview(bytearray(b"\x01" * VOLUME))
    print(f"{'bytes a call':>12} {'best MiB/s':>12} {'median':>8}")
    for size in (MIB >> 1, *(MIB << power for power in range(7))):
        found = list(rates(size, target, turns))
        print(f"{size // 1024:>8} KiB {max(found):>12,.0f} {statistics.median(found):>8,.0f}")
    source, small = mmap.mmap(-1, VOLUME), mmap.mmap(-1, MIB)
    for memory in (source, small):
        memory.write(b"\x01" * len(memory))
    print(f"{'bytes behind':>12} {'best MiB/s':>12} {'median':>8}")
    for distance in (0, 1, 16, 31, 32, 64, 1024):
        found = list(rates_at(distance, source, small, turns))
        print(f"{distance:>12} {max(found):>12,.0f} {statistics.median(found):>8,.0f}")


if __name__ == "__main__":
    main()
