#!/bin/bash
# Asks a program of this machine whether it is well: sluice-healthy PORT [/healthz|/readyz]. Exit code 0: it is.
set -euo pipefail
exec 3<>"/dev/tcp/127.0.0.1/$1"
printf 'GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' "${2:-/healthz}" >&3
read -r -t 5 _ status _ <&3
[ "$status" = 200 ]
