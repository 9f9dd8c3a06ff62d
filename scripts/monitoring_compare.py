#!/usr/bin/env python3
"""Whether Prometheus has what the servers say, and data for each query of the dashboard.

Usage: monitoring_compare.py ADDRESS STATUS.json DASHBOARD.json: what 'tabane status --json' printed when nothing was
going on any more, while this Prometheus went on asking.
"""

import json
import sys
import urllib.parse
import urllib.request

# Numbers that asking alone does not change: where the report has them, and as what Prometheus does.
SAME = {
    "tabane_dentries": lambda report: report["tables"]["dentries"],
    "tabane_inodes": lambda report: report["tables"]["inodes"],
    "tabane_chunks": lambda report: report["store"]["chunks"],
    "tabane_store_free_bytes": lambda report: report["store"]["bytes_free"],
    "tabane_store_size_bytes": lambda report: report["store"]["bytes_total"],
}


def ask(address, expression):
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def main():
    address, status, dashboard = sys.argv[1:]
    servers = json.load(open(status))["servers"]
    for name, number_of in SAME.items():
        told = {found["metric"]["server"]: float(found["value"][1]) for found in ask(address, name)}
        wanted = {str(server["server"]): float(number_of(server["report"])) for server in servers}
        assert told == wanted, f"{name}: Prometheus has {told}, the servers {wanted}"
    instances = {found["metric"]["instance"] for found in ask(address, "tabane_uptime_seconds")}
    assert len(instances) == len(servers), f"{len(servers)} servers are {instances}"
    queries = [target["expr"] for panel in json.load(open(dashboard))["panels"] for target in panel["targets"]]
    for query in queries:
        for variable, value in (("$job", "tabane"), ("$instance", ".*"), ("$__rate_interval", "1m")):
            query = query.replace(variable, value)
        found = ask(address, query)
        assert any(value["value"][1] != "NaN" for value in found), f"no data: {query}"
    with urllib.request.urlopen(f"http://{address}/api/v1/rules", timeout=30) as answer:
        groups = json.load(answer)["data"]["groups"]
    firing = [rule["name"] for group in groups for rule in group["rules"] if rule.get("state") == "firing"]
    assert not firing, f"of a cluster that is well these fire: {firing}"
    same = f"{len(SAME)} metrics of {len(servers)} servers are the same"
    print(f"{same}, {len(queries)} queries have data, nothing fires")


if __name__ == "__main__":
    main()
