#!/usr/bin/env bash
# All that is to be shown on a GPU, in one command of at most 10 minutes:
#
#   tests/cuda/run.sh [--out results.json] [--budget 570] [--only PART,...]
#   tests/cuda/run.sh --emulation ...      the same flow without a GPU: a rehearsal
#
# In a folder that pack.sh has made, it runs what was carried there; in the
# source tree, what build/release has, which it builds first if the tree can be
# built here. Needs python3; compute-sanitizer, cuBLASLt and nvidia-smi are taken
# from where the toolkit is. run_parts.py says what the parts are. Exit status: 0
# if all parts passed or were skipped, 1 if one did not, 3 if there is no GPU.
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
emulation=
for word in "$@"; do [ "$word" = --emulation ] && emulation=yes; done

if [ -f "$here/payload.tar.gz" ] || [ -f "$here/payload.tar.xz" ]; then
  payload=$(ls "$here"/payload.tar.*)
  folder=$(mktemp -d -t sluice-cuda-XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  # Python's tarfile needs no xz program.
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$payload" "$folder" 2>/dev/null ||
    tar -xf "$payload" -C "$folder"
else
  folder=$here/../..
  if [ -z "$emulation" ] && [ ! -x "$folder/build/release/bin/cuda_kernels_test_on_device" ]; then
    command -v cmake >/dev/null && command -v nvcc >/dev/null || {
      echo "run.sh: nothing is built here, and there is no cmake or nvcc to build it:" >&2
      echo "make a folder with tests/cuda/pack.sh on a machine that can, and carry it here" >&2
      exit 2
    }
    (cd "$folder" && cmake --preset cuda && cmake --build build/cuda --target cuda_on_device sluice) >&2
  fi
fi
status=0
python3 "$here/run_parts.py" --folder "$folder" "$@" || status=$?
exit $status
