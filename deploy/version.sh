# Sourced by the scripts that pack: sets version, commit, epoch (seconds of the commit, or SOURCE_DATE_EPOCH), deb_version, and
# python_version (PEP 440).
# In a tree without git, which git archive made, export-subst has filled in the commit and its time.

release_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n 's/^project(sluice VERSION \([0-9.]*\).*/\1/p' "$release_root/CMakeLists.txt")
commit='$Format:%H$'
epoch='$Format:%ct$'
tag='$Format:%D$'
if [[ $commit == *Format* ]]; then
  commit=unknown epoch=0 tag=
  if command -v git >/dev/null && [ -e "$release_root/.git" ]; then
    commit=$(git -c safe.directory='*' -C "$release_root" rev-parse HEAD)
    epoch=$(git -c safe.directory='*' -C "$release_root" log -1 --format=%ct)
    tag=$(git -c safe.directory='*' -C "$release_root" log -1 --format=%D)
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
