#!/usr/bin/env bash
# Makes a Python wheel of a build: `pip install` puts the three programs on the path, with the libraries that they need.
#
#   deploy/wheel/build.sh [BUILD [FOLDER]]    BUILD: build/release, which has to be built; FOLDER: where the wheel goes
#
# The same build gives the same bytes. Prints the wheel's path.
set -euo pipefail
source "$(dirname "$0")/../version.sh" "$@"
python=/usr/bin/python3 # Debian's, which has Debian's packages
"$python" -c 'import setuptools, wheel, pip' 2>/dev/null || {
  echo "these packages are missing; install them: apt-get install python3-pip python3-setuptools python3-wheel" >&2
  exit 1
}

work=$(mktemp -d -t sluice-wheel-XXXXXX)
trap 'rm -rf "$work"' EXIT
cp -r "$here/sluice" "$work/sluice"
rm -rf "$work/sluice/__pycache__"
"$root/deploy/archive/collect.sh" "$build" "$work/tree"
mkdir "$work/sluice/lib" "$work/sluice/share" "$work/sluice/share/doc"
mv "$work/tree/bin" "$work/sluice/bin"
mv "$work/tree/lib/sluice" "$work/sluice/lib/sluice"
mv "$work/tree/share/sluice" "$work/sluice/share/sluice"
mv "$work/tree/share/doc/sluice" "$work/sluice/share/doc/sluice"
cp "$here/README.md" "$work/README.md"
# glibc 2.34 is enough for the programs, libstdc++ of GCC 12 came with the platform of 2.35.
sed -e "s|@VERSION@|$python_version|" -e "s|@PLATFORM@|manylinux_2_35_$(uname -m)|" "$here/pyproject.toml.in" >"$work/pyproject.toml"

export SOURCE_DATE_EPOCH=$epoch
[ "$epoch" -ge 315532800 ] || SOURCE_DATE_EPOCH=315532800 # a zip file knows no time before 1980
mkdir -p "$folder"
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-index --no-build-isolation \
  --wheel-dir "$work/wheel" "$work" >"$work/wheel.log" 2>&1 || { cat "$work/wheel.log" >&2; exit 1; }
mv "$work"/wheel/*.whl "$folder/"
echo "$folder/$(basename "$(ls -t "$folder"/sluice-*.whl | head -1)")"
