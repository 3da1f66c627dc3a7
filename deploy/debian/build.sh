#!/usr/bin/env bash
# Makes the Debian package of a build: programs, systemd units, configuration.
#
#   deploy/debian/build.sh [--bundled] [BUILD [FOLDER]]    BUILD: build/release, which has to be built; FOLDER: where the
#                                                          .deb goes
#   --bundled    the libraries are in the package: for Debian 12, 13 and later. Without, Debian 12's are used
#
# The same build gives the same bytes. Prints the package's path.
set -euo pipefail
bundled=
[ "${1:-}" != --bundled ] || { bundled=1; shift; }
source "$(dirname "$0")/../version.sh" "$@"
arch=$(dpkg --print-architecture)

work=$(mktemp -d -t sluice-deb-XXXXXX)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
if [ -n "$bundled" ]; then
  mkdir -p "$tree"
  "$root/deploy/archive/collect.sh" "$build" "$tree/usr"
  deb_version+=+bundled
else
  DESTDIR=$tree cmake --install "$build" --prefix /usr --strip >"$work/install.log" || {
    cat "$work/install.log" >&2
    exit 1
  }
  SOURCE_DATE_EPOCH=$epoch "$root/deploy/sbom.py" "$build" "$version" >"$tree/usr/share/doc/sluice/sbom.spdx.json"
fi

doc=$tree/usr/share/doc/sluice
install -d -m 755 "$tree/etc/sluice" "$doc" "$tree/DEBIAN"
mv "$tree/usr/share/sluice/"*.toml "$tree/etc/sluice/"
install -m 644 "$here/copyright" "$doc/copyright"
[ -z "$bundled" ] || echo "
The libraries in /usr/lib/sluice are the work of others; licences/ beside this file has their licences." >>"$doc/copyright"

# What the programs load, by the packages that have it.
libraries="libc6 (>= 2.34), libgcc-s1 (>= 7), libstdc++6 (>= 12)"
if [ -z "$bundled" ]; then
  mkdir -p "$work/shlibdeps/debian"
  printf 'Source: sluice\n\nPackage: sluice\nArchitecture: any\n' >"$work/shlibdeps/debian/control"
  libraries=$(cd "$work/shlibdeps" && dpkg-shlibdeps -O "$tree"/usr/bin/* 2>"$work/shlibdeps.log" |
    sed -n 's/^shlibs:Depends=//p')
  [ -n "$libraries" ] || {
    cat "$work/shlibdeps.log" >&2
    exit 1
  }
fi

sed -e "s|@VERSION@|$deb_version|" -e "s|@ARCH@|$arch|" -e "s|@LIBRARIES@|$libraries|" \
  -e "s|@SIZE@|$(du -sk --apparent-size --exclude=DEBIAN "$tree" | cut -f1)|" "$here/control.in" >"$tree/DEBIAN/control"
(cd "$tree" && find etc -type f | sort | sed 's|^|/|') >"$tree/DEBIAN/conffiles"
(cd "$tree" && find usr -type f | sort | xargs md5sum) >"$tree/DEBIAN/md5sums"
install -m 755 "$here/postinst" "$here/prerm" "$here/postrm" "$tree/DEBIAN/"
chmod 644 "$tree/DEBIAN/"{control,conffiles,md5sums}

export SOURCE_DATE_EPOCH=$epoch
find "$tree" -exec touch --no-dereference --date="@$epoch" {} +
mkdir -p "$folder"
package=$folder/sluice_${deb_version}_$arch.deb
dpkg-deb --root-owner-group -Zzstd -z9 --build "$tree" "$package" >/dev/null
echo "$package"
