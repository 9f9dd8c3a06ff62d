#!/usr/bin/env python3
"""Writes what a site's logs might say of half an hour, for a first look at tabane-report: jobs.txt as sacct prints it,
nodes.csv, and for each of twelve I/O servers what 'lctl get_param' printed every 30 seconds. All of it is made up: from
10:10 to 10:16 job 4712 writes to servers 3 and 4 as well, and they have more to do than they can.

    python3 lustre_logs.py DIRECTORY
"""

import sys
from pathlib import Path

START = 1795600800  # 2026-11-25, 10:00:00 UTC
BOOTED = START - 1000000
SERVERS = 12
NODES_OF_SERVER = 24
STEP = 30
STEPS = 60


def counters(name, unit, count, total):
    return f"{name:25} {count} samples [{unit}] 0 99 {total} 0\n" if count else ""


def times(indent, width, time, start, colon=""):
    lines = [("snapshot_time", time), ("start_time", start), ("elapsed_time", time - start)]
    return "".join(f"{indent}{name + colon:{width}} {value}.000000000 secs.nsecs\n" for name, value in lines)


def reading(server, time, counted):
    """What a server of Lustre 2.15 prints."""
    head = times("", 25, time, BOOTED)
    target = f"obdfilter.scratch-OST{server - 1:04x}"
    text = "ost.OSS.ost_io.stats=\n" + head
    text += counters("req_waittime", "usecs", counted["requests"], counted["wait"])
    text += counters("req_qdepth", "reqs", counted["requests"], counted["depth"])
    text += counters("req_active", "reqs", counted["requests"], counted["active"])
    text += f"{target}.stats=\n" + head
    text += counters("write_bytes", "bytes", counted["requests"], counted["requests"] << 20)
    text += f"{target}.job_stats=\njob_stats:\n"
    for job, done in sorted(counted["jobs"].items()):
        text += f"- job_id:          {job}\n" + times("  ", 16, done["time"], done["start"], ":")
        text += "  read_bytes:      { samples: 0, unit: bytes, min: 0, max: 0, sum: 0, sumsq: 0 }\n"
        text += f"  write_bytes:     {{ samples: {done['requests']}, unit: bytes, min: 1048576, max: 1048576, "
        text += f"sum: {done['requests'] << 20}, sumsq: 0 }}\n"
    return text + "version=2.15.5\n"


def jobs_of(server, step, requests):
    """Which job sent how many of a server's requests in a step."""
    if server in (3, 4) and 20 <= step < 32:
        return {4711: requests // 10, 4712: requests - requests // 10}
    if 10 <= step < 40:
        return {4711 if server <= 4 else 4712: requests}
    return {}


def log(server):
    counted = {"requests": 0, "wait": 0, "depth": 0, "active": 0, "jobs": {}}
    text = ""
    for step in range(STEPS + 1):
        text += reading(server, START + STEP * step, counted)
        requests = 1500 + 100 * ((7 * server + 3 * step) % 5)
        waiting = 40 if server in (3, 4) and 20 <= step < 32 else 6 if (step + server) % 10 < 3 else 0.1
        counted["requests"] += requests
        counted["depth"] += int(requests * waiting)
        counted["wait"] += int(requests * (50 + 3000 * waiting))
        counted["active"] += requests * min(16, 1 + int(waiting))
        for job, done in jobs_of(server, step, requests).items():
            of_job = counted["jobs"].setdefault(job, {"requests": 0, "start": START + STEP * step})
            of_job["requests"] += done
            of_job["time"] = START + STEP * (step + 1)
    return text


def main():
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "jobs.txt").write_text(
        "JobID|JobIDRaw|JobName|User|State|Start|End|NodeList\n"
        "4711|4711|ior|alice|COMPLETED|2026-11-25T10:00:00|2026-11-25T10:30:00|n[001-096]\n"
        "4711.batch|4711.batch|batch||COMPLETED|2026-11-25T10:00:00|2026-11-25T10:30:00|n001\n"
        "4712|4712|fluid|bob|COMPLETED|2026-11-25T10:05:00|2026-11-25T10:20:00|n[097-288]\n")
    places = range(SERVERS * NODES_OF_SERVER)
    nodes = [(number, number % NODES_OF_SERVER, number // NODES_OF_SERVER) for number in places]
    (directory / "nodes.csv").write_text("node,x,y,io_server\n" + "".join(
        f"n{number + 1:03},{x},{y},oss{y + 1}\n" for number, x, y in nodes))
    for server in range(1, SERVERS + 1):
        (directory / f"oss{server}.log").write_text(log(server))


if __name__ == "__main__":
    main()
