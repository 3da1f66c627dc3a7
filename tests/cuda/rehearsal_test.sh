#!/usr/bin/env bash
# Packs the emulated programs and runs run.sh from there, as on a machine with a
# GPU, and looks at the results file. rehearsal_test.sh BIN
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d -t sluice-rehearsal-XXXXXX)
trap 'rm -rf "$work"' EXIT
"$here/pack.sh" --emulation --gzip --bin "$1" "$work/carried"
cd "$work"
status=0
env -u LD_LIBRARY_PATH "$work/carried/run.sh" --emulation --out "$work/results.json" --budget 200 || status=$?
python3 - "$work/results.json" $status <<'PY'
import json, sys
results = json.load(open(sys.argv[1]))
parts = {p["part"].split(":")[0]: p for p in results["parts"]}
print(json.dumps(results, indent=1)[:6000])
assert sys.argv[2] == "0", f"exit status {sys.argv[2]}"
assert results["kind"] == "emulation" and "rehearsal" in results["note"], results["kind"]
assert results["commit"], "without a commit"
want = {"machine", "parity", "equivalence", "memcheck", "racecheck", "kernels", "end_to_end"}
assert set(parts) == want, set(parts) ^ want
assert all(p["outcome"] == "passed" for p in results["parts"]), results["summary"]
assert parts["kernels"]["data"]["device"]["emulation"] is True
assert all(v["outcome"] == "passed" for v in parts["end_to_end"]["data"]["cases"].values())
assert len(parts["equivalence"]["data"]["policies"]) == 6
PY
# A part that is not there is told, and stops nobody.
rm -rf "$work/broken" && mkdir -p "$work/broken/bin"
python3 "$here/run_parts.py" --folder "$work/broken" --emulation --out "$work/broken.json" && exit 1
python3 - "$work/broken.json" <<'PY'
import json, sys
results = json.load(open(sys.argv[1]))
assert results["summary"] == {"missing": 9, "passed": 1}, results["summary"]
PY
# Without a GPU, and not asked to rehearse: one clear sentence.
if ! command -v nvidia-smi >/dev/null; then
  status=0
  python3 "$here/run_parts.py" --folder "$work/broken" --out "$work/none.json" || status=$?
  [ $status -eq 3 ] && grep -q "there is no GPU here" "$work/none.json"
fi
