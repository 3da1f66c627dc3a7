#!/usr/bin/env bash
# All that is to be shown on a GPU, in one command of at most 10 minutes:
#
#   tests/cuda/run.sh [--out results.json] [--budget SECONDS] [--only PART,...]
#   tests/cuda/run.sh --emulation ...      the same flow without a GPU: a rehearsal
#
# In a folder that pack.sh has made, it runs what was carried there. In the source
# tree it runs what build/release has, or else build/cuda; if neither has all of
# it, it builds first, which takes much longer. Needs python3; compute-sanitizer,
# cuBLASLt and nvidia-smi are taken from where the toolkit is. run_parts.py says
# what the parts are. Exit status: 0 if all parts passed or no time was left for
# them, 1 if one did not pass, 2 if there is nothing to run, 3 if there is no GPU.
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
emulation=
for word in "$@"; do [ "$word" = --emulation ] && emulation=--emulation; done

# has FOLDER: tells whether all programs are there.
has() {
  local program
  for program in $(python3 "$here/run_parts.py" --list $emulation); do
    [ -x "$1/$program" ] || return 1
  done
}

# build PRESET TARGET: builds, with all that it says on stderr.
build() {
  command -v cmake >/dev/null &&
    (cd "$root" && cmake --preset "$1" -DBUILD_TESTING=ON && cmake --build "build/$1" --target "$2") >&2
}

if [ -f "$here/payload.tar.gz" ] || [ -f "$here/payload.tar.xz" ]; then
  payload=$(ls "$here"/payload.tar.*)
  folder=$(mktemp -d -t sluice-cuda-XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  # Python's tarfile needs no xz program.
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$payload" "$folder" 2>/dev/null ||
    tar -xf "$payload" -C "$folder"
  where=(--folder "$folder")
else
  root=$(cd "$here/../.." && pwd)
  # Preset cuda insists on a toolkit; release takes one if it is there.
  preset=cuda target=cuda_on_device
  grep -q cuda_on_device "$root/build/release/build.ninja" 2>/dev/null && preset=release
  [ -n "$emulation" ] && preset=release target=cuda_rehearsal
  bin=
  for built in release cuda; do
    if has "$root/build/$built/bin"; then
      bin=$root/build/$built/bin
      break
    fi
  done
  if [ -z "$bin" ]; then
    build $preset $target || {
      echo "run.sh: not all that it runs is built here, and it can't be:" >&2
      echo "make a folder with tests/cuda/pack.sh on a machine that can, and carry it here" >&2
      exit 2
    }
    bin=$root/build/$preset/bin
  fi
  where=(--folder "$root" --bin "$bin")
fi
status=0
python3 "$here/run_parts.py" "${where[@]}" "$@" || status=$?
exit $status
