#!/usr/bin/env bash
# Packs what run.sh needs on a machine with a GPU and nothing else: programs,
# stripped, their shared libraries but for libc's, the driver's and the toolkit's,
# scripts and a small model.
#
#   tests/cuda/pack.sh [--emulation] [--bin build/release/bin] [--gzip] FOLDER
#
# FOLDER gets run.sh, its Python file and one compressed file, 40 MB at most
# together. Build first: cmake --build build/release --target cuda_on_device.
# --emulation packs the emulated programs, for the rehearsal; --gzip compresses
# less and faster than xz, without that limit.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$root/build/release/bin
emulation= gzip= folder=
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --emulation) emulation=--emulation ;;
    --gzip) gzip=yes ;;
    --bin) bin=$2; shift ;;
    -*) echo "pack.sh: unknown flag $1" >&2; exit 2 ;;
    *) folder=$1 ;;
  esac
  shift
done
[ -n "$folder" ] || { echo "pack.sh: into which folder?" >&2; exit 2; }

target=cuda_on_device
[ -n "$emulation" ] && target=cuda_rehearsal
mapfile -t programs < <(python3 "$root/tests/cuda/run_parts.py" --list $emulation)
for program in "${programs[@]}"; do
  [ -x "$bin/$program" ] || {
    echo "pack.sh: $bin/$program is not built; target $target makes it" >&2
    exit 1
  }
done

stage=$(mktemp -d -t sluice-pack-XXXXXX)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/bin" "$stage/lib/cxx" "$stage/model" "$folder"
for program in "${programs[@]}"; do
  strip -o "$stage/bin/$program" "$bin/$program"
done
# Libraries of the C++ compiler lie apart: they are taken only where the machine's
# own are too old.
for program in "${programs[@]}"; do ldd "$bin/$program"; done |
  awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  while read -r name path; do
    case "$name" in
      libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux* | libresolv.so.*) ;;
      libcuda.so* | libcublas* | libnccl* | libnvidia*) ;;
      libstdc++.so.* | libgcc_s.so.*) cp -L "$path" "$stage/lib/cxx/$name" ;;
      *) cp -L "$path" "$stage/lib/$name" ;;
    esac
  done
cp "$root"/tests/models/llama-kjv/* "$stage/model/"
cp "$root/tests/bench/bench_cuda.py" "$root/tests/cuda/equivalence.py" "$stage/"
{
  git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown
  git -C "$root" diff --quiet HEAD 2>/dev/null || echo "-dirty"
} | tr -d '\n' >"$stage/commit"

rm -f "$folder"/payload.tar.*
if [ -n "$gzip" ]; then
  tar -C "$stage" -cf - . | gzip -1 >"$folder/payload.tar.gz"
else
  # All programs carry the same kernels: with a dictionary that reaches from one
  # program to the next (and one thread, since threads share none), they are
  # stored once. Unpacking takes as much memory as the dictionary.
  tar -C "$stage" --sort=name -cf - . |
    xz -T1 --lzma2=preset=6,dict=192MiB >"$folder/payload.tar.xz"
fi
cp "$root/tests/cuda/run.sh" "$root/tests/cuda/run_parts.py" "$folder/"
bytes=$(cat "$folder"/payload.tar.* "$folder/run.sh" "$folder/run_parts.py" | wc -c)
echo "$folder: ${#programs[@]} programs, $((bytes / 1000000)) MB"
if [ -z "$gzip" ] && [ "$bytes" -gt 40000000 ]; then
  echo "pack.sh: that is more than 40 MB" >&2
  exit 1
fi
