#!/usr/bin/env bash
# Makes a private certificate authority for a cluster, and a certificate for each machine.
#
#   deploy/tls/make.sh FOLDER NAME...          e.g. deploy/tls/make.sh ./tls head.lan 10.0.0.7 laptop
#   deploy/tls/make.sh --days 90 FOLDER NAME   certificates good for so long (825 days without; the authority: ten years)
#
# FOLDER/ca.pem is the authority, FOLDER/ca.key its key, which stays on this machine. FOLDER/NAME.pem and FOLDER/NAME.key are
# for the machine that others reach as NAME, a host's name or an address, and for localhost. Run again, it keeps the authority,
# and makes the named machines' certificates anew; running programs read them by themselves. Then, on each machine:
#
#   sluice-worker ... --tls-cert NAME.pem --tls-key NAME.key --tls-ca ca.pem
set -euo pipefail
umask 077
usage() {
  sed -n '2,14s/^# \{0,1\}//p' "$0"
}
fail() {
  echo "$(basename "$0"): $1" >&2
  exit 2
}
days=825
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --days)
    [[ "${2:-}" =~ ^[1-9][0-9]{0,4}$ ]] || fail "--days takes a number of days, not '${2:-}'"
    days=$2
    shift 2
    ;;
esac
[ $# -ge 2 ] || fail "name a folder and at least one machine; see $0 --help"
command -v openssl >/dev/null || fail "openssl is missing; install it: apt-get install openssl"
folder=$1
shift
for name in "$@"; do
  [[ "$name" =~ ^[A-Za-z0-9:]([A-Za-z0-9.:-]*[A-Za-z0-9])?$ ]] || fail "'$name' is no host's name or address"
done
mkdir -p "$folder"
log=$(mktemp -t sluice-tls-XXXXXX)
trap 'rm -f "$log" "$folder"/.new.*' EXIT
quietly() {
  "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
  }
}

if [ ! -e "$folder/ca.pem" ]; then
  quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=Sluice cluster" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$folder/ca.key" -out "$folder/.new.ca"
  mv "$folder/.new.ca" "$folder/ca.pem"
  echo "$folder/ca.pem: a new authority"
fi
for name in "$@"; do
  kind=DNS
  [[ "$name" =~ ^[0-9.]+$ || "$name" == *:* ]] && kind=IP
  printf '%s\n' "subjectAltName=$kind:$name,DNS:localhost,IP:127.0.0.1,IP:::1" "basicConstraints=critical,CA:FALSE" \
    "keyUsage=critical,digitalSignature" "extendedKeyUsage=serverAuth,clientAuth" >"$folder/.new.ext"
  quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=${name:0:64}" \
    -keyout "$folder/.new.key" -out "$folder/.new.csr"
  quietly openssl x509 -req -in "$folder/.new.csr" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -CAcreateserial \
    -CAserial "$folder/.new.serial" -days "$days" -extfile "$folder/.new.ext" -out "$folder/.new.pem"
  mv "$folder/.new.key" "$folder/$name.key"
  mv "$folder/.new.pem" "$folder/$name.pem"
  echo "$folder/$name.pem: good for $days days"
done
chmod 644 "$folder"/*.pem
