#!/usr/bin/env bash
# Makes an archive of a build that runs where it is unpacked: programs, the libraries that they need, units, a small model.
#
#   deploy/archive/build.sh [BUILD [FOLDER]]    BUILD: build/release, which has to be built; FOLDER: where the archive goes
#
# The same build gives the same bytes. Prints the archive's path.
set -euo pipefail
source "$(dirname "$0")/../version.sh" "$@"
name=sluice-$python_version-linux-$(uname -m)

work=$(mktemp -d -t sluice-archive-XXXXXX)
trap 'rm -rf "$work"' EXIT
"$here/collect.sh" "$build" "$work/$name"
mkdir -p "$folder"
archive=$folder/$name.tar.gz
# gzip: a bare Debian has no xz.
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" | gzip -n >"$archive"
echo "$archive"
