#!/usr/bin/env bash
# Installs what is missing, builds, lints, and runs all tests.
#
#   deploy/test.sh            lint.py and the release build's tests
#   deploy/test.sh asan       the same under AddressSanitizer and UBSan
#   deploy/test.sh tsan       ... under ThreadSanitizer
#   deploy/test.sh release -R tokenizer    further words go to ctest, and nothing is linted
#   deploy/test.sh --retry [...]     a test that fails gets a second try; the last lines name it as FLAKY
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
source "$(dirname "$0")/common.sh"
run=run_tests
if [ "${1:-}" = --retry ]; then
  run=retry_tests
  shift
fi
preset=${1:-release}
[ $# -gt 0 ] && shift
install_packages
build "$preset"
cd "$root_dir"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="suppressions=$root_dir/tests/tsan.supp:halt_on_error=1:${TSAN_OPTIONS:-}"
linted=0
if [ "$preset" = release ] && [ $# -eq 0 ]; then
  build clang sluice_proto_sources
  deploy/lint.py || linted=$?
fi
"$run" "build/$preset" "$@"
exit "$linted"
