# The scripts of this directory source this file; it is not run.

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)
tested_gcc=12 # Debian 12's
with_tests=ON

# install_packages [build]: installs the missing packages of deploy/packages.txt, or of those that building needs; without
# root, prints them and fails.
install_packages() {
  local wanted missing=()
  wanted=$(sed "${1:+/^$/q}" "$root_dir/deploy/packages.txt" | grep -v '^#')
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

# build PRESET [TARGET...]: configures once, then builds: programs and tests, or with with_tests=OFF programs only. Warnings
# are errors only with the tested compiler and without sanitizers, with which GCC's warnings may be false.
build() {
  local preset=$1 strict=OFF
  shift
  cd "$root_dir" || return 1
  if [ ! -f "build/$preset/build.ninja" ] || {
    [ "$with_tests" = ON ] && grep -q '^BUILD_TESTING:BOOL=OFF' "build/$preset/CMakeCache.txt"
  }; then
    case "$preset" in
      asan | tsan | clang) ;;
      *) [ "$(${CXX:-c++} -dumpversion)" = "$tested_gcc" ] && strict=ON ;;
    esac
    cmake --preset "$preset" -DBUILD_TESTING="$with_tests" -DCMAKE_COMPILE_WARNING_AS_ERROR=$strict >"/tmp/sluice-cmake-$$.log" 2>&1 || {
      cat "/tmp/sluice-cmake-$$.log" >&2
      return 1
    }
    rm -f "/tmp/sluice-cmake-$$.log"
  fi
  cmake --build "build/$preset" -j "$jobs" ${1:+--target "$@"}
}

# run_tests FOLDER [WORD...]: runs a build folder's tests; the words go to ctest. Tests of whole programs wait about as
# long as they compute, so two more run than there are cores.
run_tests() {
  local folder=$1
  shift
  ctest --test-dir "$folder" -j "$((jobs + 2))" --output-on-failure --no-tests=error "$@"
}

# retry_tests FOLDER [WORD...]: the same, but a test that fails gets a second try. The last lines name the tests that
# needed it: each is a bug until its cause is found.
retry_tests() {
  local log code=0
  log=$(mktemp -t sluice-tests-XXXXXX)
  run_tests "$@" --repeat until-pass:2 2>&1 | tee "$log" || code=$?
  awk '/Test +#[0-9]+: / {
         name = $0
         sub(/^.*Test +#[0-9]+: /, "", name)
         sub(/ .*$/, "", name)
         if (/\*\*\*(Failed|Timeout|Exception)/) failed[name] = 1
         else if (/ Passed / && failed[name]) print "FLAKY: " name " failed at first and passed on its second try"
       }' "$log"
  rm -f "$log"
  return "$code"
}
