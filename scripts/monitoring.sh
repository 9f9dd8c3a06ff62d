#!/bin/sh
# Checks what packaging/monitoring has for operators: alert rules with their tests (promtool), and that each metric that
# a rule or the dashboard names is one that a server prints. With a cluster's program also against what it prints now,
# and by a Prometheus that asks for a minute.
# Usage: monitoring.sh [DIRECTORY-WITH-PROGRAMS] (Debian: prometheus; curl). Not part of .ci/run.
set -eu

scripts=$(cd "$(dirname "$0")" && pwd)
monitoring=$scripts/../packaging/monitoring
command -v promtool >/dev/null || { echo "monitoring.sh: promtool is missing: apt-get install prometheus" >&2; exit 1; }
[ $# -eq 0 ] || { tabane=$(cd "$1" && pwd)/tabane; report=$(cd "$1" && pwd)/tabane-report; }
cd "$monitoring"
promtool check rules alerts.yml
promtool test rules alerts-test.yml
promtool check config prometheus.yml
promtool check config prometheus-cluster.yml
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
serve=
prometheus=
trap 'kill $serve $prometheus 2>/dev/null || true; "$tabane" down --run-directory "$work/run" 2>/dev/null || true
    wait; rm -rf "$work"' EXIT
"$tabane" up --servers 2 --store memory:size=64M --run-directory "$work/run" --metrics-port 29300 >/dev/null
echo hello | "$tabane" put --cluster "$work/run" /hello
curl -sf http://127.0.0.1:29300/metrics >"$work/metrics"
promtool check metrics <"$work/metrics"
echo "what a server prints passes 'promtool check metrics'"
"$tabane" status --metrics --cluster "$work/run" >"$work/all"
promtool check metrics <"$work/all"
[ "$(grep -c '^tabane_server_up{server="[01]"} 1$' "$work/all")" = 2 ]
echo "so does the page of all servers"

# A Prometheus that asks for a minute, while files come and go.
"$report" serve --cluster "$work/run" --listen 127.0.0.1:29299 >"$work/url" &
serve=$!
sed -e 's/127.0.0.1:9299/127.0.0.1:29299/; s/scrape_interval: 10s/scrape_interval: 2s/' prometheus-cluster.yml \
    >"$work/prometheus.yml"
cp alerts.yml "$work"
(cd "$work" && exec prometheus --config.file=prometheus.yml --storage.tsdb.path=data --log.level=error \
    --web.listen-address=127.0.0.1:29090) &
prometheus=$!
for turn in $(seq 30); do
    seq "$turn"000 | "$tabane" put --cluster "$work/run" "/file-$turn"
    "$tabane" cat --cluster "$work/run" "/file-$turn" >/dev/null
    sleep 2
done
"$tabane" status --json --no-mounts --cluster "$work/run" >"$work/status.json"
sleep 5
python3 -B "$scripts/monitoring_compare.py" 127.0.0.1:29090 "$work/status.json" grafana-dashboard.json
