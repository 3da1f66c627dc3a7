# Shared by the scripts of this directory; sourced, not run.

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)

# Installs what deploy/packages.txt lists and is missing; without root, says
# what to install and fails.
install_packages() {
  local wanted missing=()
  wanted=$(grep -v '^#' "$root_dir/deploy/packages.txt")
  for package in $wanted; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null |
      grep -q '^install ok installed$' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "These packages are missing; install them as root and run this again:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    return 1
  fi
  echo "installing ${#missing[@]} packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq &&
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# build PRESET [TARGET...]: configures once, then builds.
build() {
  local preset=$1
  shift
  cd "$root_dir" || return 1
  if [ ! -f "build/$preset/build.ninja" ]; then
    cmake --preset "$preset" >"/tmp/sluice-cmake-$$.log" 2>&1 || {
      cat "/tmp/sluice-cmake-$$.log" >&2
      return 1
    }
    rm -f "/tmp/sluice-cmake-$$.log"
  fi
  cmake --build "build/$preset" -j "$jobs" ${1:+--target "$@"}
}
