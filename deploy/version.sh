# The scripts that pack a build source this file with their own words, [BUILD [FOLDER]], and get: here, the script's folder;
# root, the repository's; build and folder, absolute and as named; version, commit, epoch (seconds of the commit, or
# SOURCE_DATE_EPOCH), deb_version, and python_version (PEP 440). --help prints the comment at the script's head. A folder without
# a build, or a word too many, ends the script with status 2.
# In a tree without git, which git archive made, export-subst has filled in the commit and its time.

case "${1:-}" in
  -h | --help) sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"; exit 0 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -le 2 ] || { echo "${0##*/} takes no word behind [BUILD [FOLDER]]: $3; see $0 --help" >&2; exit 2; }
build=${1:-$root/build/release}
[ -x "$build/bin/sluice-worker" ] || {
  echo "$build has no programs; build them first: cmake --preset release && cmake --build build/release" >&2
  exit 2
}
build=$(cd "$build" && pwd)
folder=${2:-$build}

version=$(sed -n 's/^project(sluice VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
commit='$Format:%H$'
epoch='$Format:%ct$'
tag='$Format:%D$'
if [[ $commit == *Format* ]]; then
  commit=unknown epoch=0 tag=
  if command -v git >/dev/null && [ -e "$root/.git" ]; then
    commit=$(git -c safe.directory='*' -C "$root" rev-parse HEAD)
    epoch=$(git -c safe.directory='*' -C "$root" log -1 --format=%ct)
    tag=$(git -c safe.directory='*' -C "$root" log -1 --format=%D)
  fi
fi
epoch=${SOURCE_DATE_EPOCH:-$epoch}
deb_version=$version
python_version=$version
# What is not the release comes before it: ~ sorts first, and so does .dev.
[[ ", $tag," == *"tag: v$version,"* ]] || {
  stamp=$(date -u -d "@$epoch" +%Y%m%d%H%M%S)
  deb_version="$version~$stamp.${commit:0:12}"
  python_version="$version.dev$stamp+g${commit:0:12}"
}
