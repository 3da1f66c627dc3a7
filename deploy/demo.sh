#!/usr/bin/env bash
# The main job, end to end, on this machine: a coordinator and two workers on
# loopback, a file of prompts, every answer. Installs and builds what is missing,
# without the tests, and stops what it started.
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
source "$(dirname "$0")/common.sh"
install_packages build
with_tests=OFF
build release sluice sluice-coordinator sluice-worker
cd "$root_dir"

bin=build/release/bin
model=tests/models/llama-kjv
work=$(mktemp -d -t sluice-demo-XXXXXX)
pids=()
stop() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap stop EXIT

# Waits until a program has printed the ports that it listens on.
wait_for_line() { # file pattern pid
  for _ in $(seq 200); do
    grep -q "$2" "$1" 2>/dev/null && return 0
    kill -0 "$3" 2>/dev/null || break
    sleep 0.1
  done
  echo "a program did not start; its log:" >&2
  cat "$1" "${1%.out}.log" >&2
  return 1
}

"$bin/sluice-coordinator" --model "$model" --state-dir "$work/state" --min-workers 2 \
  --port 0 --metrics-port 0 >"$work/coordinator.out" 2>"$work/coordinator.log" &
pids+=($!)
wait_for_line "$work/coordinator.out" '^listening on' $!
coordinator=$(sed -n 's/^listening on \([^,]*\),.*/\1/p' "$work/coordinator.out")
for i in 1 2; do
  "$bin/sluice-worker" --coordinator "$coordinator" --model "$model" --name "worker-$i" \
    --threads "$(((jobs + 1) / 2))" --host-memory 1GiB --port 0 --metrics-port 0 --no-profile \
    >"$work/worker-$i.out" 2>"$work/worker-$i.log" &
  pids+=($!)
  wait_for_line "$work/worker-$i.out" 'metrics on' $!
done
export SLUICE_COORDINATOR=$coordinator

echo "== submitting deploy/demo-prompts.jsonl"
began=$(date +%s%N)
"$bin/sluice" submit --input deploy/demo-prompts.jsonl --name demo --wait --output "$work/answers.jsonl" |
  tee "$work/job.txt"
ended=$(date +%s%N)
job=$(awk 'NR == 1 { print $1 }' "$work/job.txt")
echo
echo "== the workers"
"$bin/sluice" cluster
echo
echo "== the answers of $job"
python3 - "$work/answers.jsonl" deploy/demo-prompts.jsonl <<'PY'
import json, sys
prompts = {}
for line in open(sys.argv[2]):
    request = json.loads(line)
    body = request["body"]
    prompts[request["custom_id"]] = body.get("prompt") or body["messages"][-1]["content"]
for line in open(sys.argv[1]):
    result = json.loads(line)
    name = result["custom_id"]
    if result["error"]:
        print(f"{name}: error: {result['error']['message']}")
        continue
    choice = result["response"]["body"]["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    print(f"{name}: {prompts[name]}\n    ... {' '.join(text.split())}")
PY
echo
awk -v ns="$((ended - began))" '/^  tokens/ {
  printf "== %d tokens of prompts and %d of answers in %.1f s: %.1f generated tokens/s, loading included\n",
    $2, $4, ns / 1e9, $4 / (ns / 1e9) }' "$work/job.txt"
