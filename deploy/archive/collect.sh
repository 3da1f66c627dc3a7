#!/usr/bin/env bash
# Collects a build's programs in one folder, with the shared libraries that they need, those libraries' licences, and a
# small model to try them with. deploy/archive/build.sh and deploy/wheel/build.sh pack that folder.
#
#   deploy/archive/collect.sh BUILD FOLDER    BUILD: build/release, which has to be built; FOLDER: must not exist
#
# glibc, libstdc++ and libgcc_s stay the system's: older ones than $most_glibc and $most_libstdcxx name are refused here.
set -euo pipefail
source "$(dirname "$0")/../version.sh" "$@"
[ $# -eq 2 ] || { "$0" --help >&2; exit 2; }
[ ! -e "$folder" ] || { echo "$folder is there already; delete it, or name another folder" >&2; exit 2; }

most_glibc=2.34       # Debian 12, Ubuntu 22.04 and later
most_libstdcxx=3.4.30 # GCC 12's
system='^(ld-linux-.*|libc|libm|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s)\.so\.[0-9]+$'

log=$(mktemp -t sluice-install-XXXXXX)
trap 'rm -f "$log"' EXIT
cmake --install "$build" --prefix "$folder" --strip >"$log" || { cat "$log" >&2; exit 1; }
folder=$(cd "$folder" && pwd)
programs=("$folder"/bin/*)

# The libraries, by the names that the loader asks for.
libraries=$folder/lib/sluice licences=$folder/share/doc/sluice/licences
mkdir -p "$libraries" "$licences"
ldd "${programs[@]}" >"$log"
if grep 'not found' "$log" >&2; then
  echo "these libraries are missing here; install the packages of deploy/packages.txt" >&2
  exit 1
fi
: >"$licences/libraries.txt"
wanted=$(awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' "$log" | sort -u | grep -vE "${system/\$/ }")
# Since / and /usr were merged, dpkg knows a file by one of two names; it is asked once, as it reads all its lists.
mapfile -t files < <(while read -r _ path; do realpath "$path"; done <<<"$wanted")
declare -A owner
while IFS= read -r line; do
  owner[${line##*: }]=${line%%[:,]*}
done < <(dpkg-query -S "${files[@]}" "${files[@]#/usr}" 2>/dev/null)
while read -r name path; do
  file=$(realpath "$path")
  package=${owner[$file]:-${owner[${file#/usr}]:-}}
  [ -n "$package" ] || {
    echo "$file belongs to no Debian package, so its licence is unknown; build with the libraries of deploy/packages.txt" >&2
    exit 1
  }
  install -m 644 "$file" "$libraries/$name"
  cp -L "/usr/share/doc/$package/copyright" "$licences/$package"
  dpkg-query -W -f "$name \${Package} \${Version}, source \${source:Package} \${source:Version}\n" "$package" |
    head -1 >>"$licences/libraries.txt"
done <<<"$wanted"
# Debian's copyright files name these by their paths.
cat "$licences"/* | grep -oE '/usr/share/common-licenses/[A-Za-z0-9.+-]*[A-Za-z0-9]' | sort -u | while read -r text; do
  [ ! -f "$text" ] || cp -L "$text" "$licences/$(basename "$text").txt"
done
cp "$root/LICENSE" "$folder/share/doc/sluice/LICENSE"

# What is needed of the system, by the versions of symbols.
needed() { # prefix
  objdump -p "${programs[@]}" "$libraries"/* | grep -oE "\b$1[0-9.]+" | sed "s/^$1//" | sort -Vu | tail -1
}
for pair in "GLIBC_ $most_glibc" "GLIBCXX_ $most_libstdcxx"; do
  read -r prefix most <<<"$pair"
  found=$(needed "$prefix")
  [ "$(printf '%s\n' "$found" "$most" | sort -V | tail -1)" = "$most" ] || {
    echo "programs and libraries need $prefix$found, and promise to do with $prefix$most: build on Debian 12" >&2
    exit 1
  }
done

SOURCE_DATE_EPOCH=$epoch "$root/deploy/sbom.py" "$build" "$version" >"$folder/share/doc/sluice/sbom.spdx.json"

demo=$folder/share/sluice/demo
mkdir -p "$demo"
cp -r "$root/tests/models/llama-kjv" "$demo/llama-kjv"
cp "$root/deploy/demo-prompts.jsonl" "$demo/prompts.jsonl"
install -m 755 "$root/deploy/container/healthy.sh" "$folder/share/sluice/healthy.sh"
chmod -R u=rwX,go=rX "$folder"
