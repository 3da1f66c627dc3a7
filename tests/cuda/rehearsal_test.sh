#!/usr/bin/env bash
# Packs the emulated programs and runs run.sh from there, as on a machine with a
# GPU, and looks at the results file.
#
#   rehearsal_test.sh BIN [TEST_on_device...]
#
# The tests are those that the build has for a device.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$1
shift
work=$(mktemp -d -t sluice-rehearsal-XXXXXX)
trap 'rm -rf "$work"' EXIT

# All of the build's tests for a device are run there.
if [ $# -gt 0 ]; then
  diff <(printf '%s\n' "$@" | sort) <(python3 "$here/run_parts.py" --list | grep _on_device | sort)
fi

"$here/pack.sh" --emulation --gzip --bin "$bin" "$work/carried"
cd "$work"
status=0
env -u LD_LIBRARY_PATH "$work/carried/run.sh" --emulation --out "$work/results.json" --budget 400 || status=$?
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
models = parts["end_to_end"]["data"]
assert models["device"] == "cuda" and models["profile"]["outcome"] == "passed", models["device"]
profile = models["profile"]["profile"]
assert profile["device"].startswith("cuda:0: emulated device"), profile
assert profile["device_compute"]["products"][0]["dtype"] == models["dtype"] == "bfloat16", profile
for name, case in models["cases"].items():
    assert case["outcome"] == "passed" and case["predicted_tokens_per_second"] > 0, (name, case)
same = parts["equivalence"]["data"]
assert same["device"] == "cuda" and len(same["policies"]) == 9, same
for name, policy in same["policies"].items():
    assert policy["outcome"] == "passed" and policy["compared_tokens"] > 0, (name, policy)
PY

# A part that is not there is told, and stops nobody.
mkdir -p "$work/broken/bin"
python3 "$here/run_parts.py" --folder "$work/broken" --emulation --out "$work/broken.json" && exit 1
python3 - "$work/broken.json" <<'PY'
import json, sys
results = json.load(open(sys.argv[1]))
assert results["summary"] == {"missing": 9, "passed": 1}, results["summary"]
PY

# run.sh says one clear sentence without a GPU, if it is not asked to rehearse.
if ! command -v nvidia-smi >/dev/null; then
  status=0
  python3 "$here/run_parts.py" --folder "$work/broken" --out "$work/none.json" || status=$?
  [ $status -eq 3 ] && grep -q "there is no GPU here" "$work/none.json"
fi

# The pack is in xz, as it is carried: programs that share what they hold are stored
# once, however far apart, and run.sh unpacks them where there is nothing else.
mkdir -p "$work/stubs"
head -c $((9 << 20)) /dev/urandom >"$work/shared"
for program in $(python3 "$here/run_parts.py" --list); do
  cp -L "$(type -P true)" "$work/stubs/$program"
  objcopy --add-section .kernels="$work/shared" "$work/stubs/$program"
done
"$here/pack.sh" --bin "$work/stubs" "$work/xz"
[ "$(cat "$work"/xz/* | wc -c)" -lt $((18 << 20)) ]
if ! command -v nvidia-smi >/dev/null; then
  status=0
  (cd / && env -i PATH="$PATH" HOME="$work" "$work/xz/run.sh" --out "$work/xz.json") || status=$?
  [ $status -eq 3 ] && grep -q "there is no GPU here" "$work/xz.json"
fi

# A source tree's run.sh takes what build/release has, or else build/cuda; what neither
# has is built where it can be, which a cmake that only notes what it is asked for
# shows.
tree=$work/tree
mkdir -p "$tree/tests/cuda" "$work/tools"
cp "$here"/{run.sh,run_parts.py,equivalence.py} "$tree/tests/cuda/"
# programs PRESET [--emulation]: makes all of them, which do nothing.
programs() {
  mkdir -p "$tree/build/$1/bin"
  for program in $(python3 "$here/run_parts.py" --list ${2:-}); do
    printf '#!/bin/sh\nexit 1\n' >"$tree/build/$1/bin/$program"
    chmod +x "$tree/build/$1/bin/$program"
  done
}
# chosen PRESET [--emulation]: checks that run.sh takes that preset's programs.
chosen() {
  local status=0
  PATH=$work/tools:$PATH "$tree/tests/cuda/run.sh" ${2:-} --only machine --out "$work/tree.json" || status=$?
  [ $status -eq 0 ] || [ $status -eq 3 ] # there is no GPU
  python3 - "$work/tree.json" "$tree/build/$1/bin" <<'PY'
import json, os, sys
programs = json.load(open(sys.argv[1]))["programs"]
assert os.path.samefile(programs, sys.argv[2]), programs
PY
}
# asked TEXT: checks that cmake was asked for this, and for nothing else.
asked() {
  diff <(echo "$1") "$work/asked"
  rm "$work/asked"
}
printf '#!/bin/sh\nexit 1\n' >"$work/tools/cmake"
chmod +x "$work/tools/cmake"
for flag in "" --emulation; do
  status=0
  PATH=$work/tools:$PATH "$tree/tests/cuda/run.sh" $flag --out "$work/tree.json" 2>"$work/said" || status=$?
  [ $status -eq 2 ] && grep -q "make a folder with tests/cuda/pack.sh" "$work/said"
done
cat >"$work/tools/cmake" <<SH
#!/bin/sh
echo "\$*" >>"$work/asked"
SH
mkdir -p "$tree/build/release/bin" "$tree/build/cuda/bin"
chosen cuda
asked "--preset cuda -DBUILD_TESTING=ON
--build build/cuda --target cuda_on_device"
chosen release --emulation
asked "--preset release -DBUILD_TESTING=ON
--build build/release --target cuda_rehearsal"
echo "build cuda_on_device: phony" >"$tree/build/release/build.ninja"
chosen release
asked "--preset release -DBUILD_TESTING=ON
--build build/release --target cuda_on_device"
programs cuda
chosen cuda
programs cuda --emulation
chosen cuda --emulation
programs release
chosen release
programs release --emulation
chosen release --emulation
[ ! -e "$work/asked" ]
echo "run.sh finds what it runs"
