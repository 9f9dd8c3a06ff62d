#!/bin/sh
# Checks what packaging/monitoring has for operators: alert rules with their tests (promtool), and that each metric that
# a rule or the dashboard names is one that a server prints. With a cluster's program also against what it prints now.
# Usage: monitoring.sh [DIRECTORY-WITH-PROGRAMS] (Debian: prometheus, for promtool; curl). Not part of .ci/run.
set -eu

monitoring=$(cd "$(dirname "$0")/../packaging/monitoring" && pwd)
command -v promtool >/dev/null || { echo "monitoring.sh: promtool is missing: apt-get install prometheus" >&2; exit 1; }
[ $# -eq 0 ] || tabane=$(cd "$1" && pwd)/tabane
cd "$monitoring"
promtool check rules alerts.yml
promtool test rules alerts-test.yml
promtool check config prometheus.yml
python3 -B - <<'END'
import json, re
dashboard = json.load(open("grafana-dashboard.json"))
texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]] + [open("alerts.yml").read()]
named = set(re.findall(r"tabane_[a-z_]+", " ".join(texts)))
source = open("../../crates/server/src/process/statistics/exposition.rs").read()
rows = set(re.findall(r'\("[a-z0-9_]+",\s*"([a-z_]+)",\s*(?:Gauge|Counter)', source))
rows |= set(re.findall(r'\(\s*"[a-z0-9_]+",\s*"([a-z_]+)",\s*(?:Gauge|Counter)', source))
known = {"tabane_" + row for row in rows}
known |= {f"tabane_{label}_{row}" for label in ("operation", "class") for row in rows}
unknown = sorted(named - known)
assert not unknown, f"no server prints {', '.join(unknown)}"
print(f"{len(named)} metrics are named, and servers print all of them")
END
[ $# -ge 1 ] || exit 0
work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-monitoring-XXXXXX")
trap '"$tabane" down --run-directory "$work/run" 2>/dev/null || true; rm -rf "$work"' EXIT
"$tabane" up --servers 1 --store memory:size=64M --run-directory "$work/run" --metrics-port 29300 >/dev/null
echo hello | "$tabane" put --cluster "$work/run" /hello
curl -sf http://127.0.0.1:29300/metrics >"$work/metrics"
promtool check metrics <"$work/metrics"
echo "what a server prints passes 'promtool check metrics'"
