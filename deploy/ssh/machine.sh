# shellcheck shell=bash
# What up.sh does on a machine: it sends this file to bash there, and a call of one of these functions behind it.

set -euo pipefail
umask 077
folder=$HOME/sluice-cluster
programs=$folder/programs

has() { [ -x "$folder/programs-$1/bin/sluice-worker" ]; } # HASH

unpack() { # HASH
  local fresh=$folder/programs-$1.new
  rm -rf "$fresh"
  mkdir -p "$fresh"
  tar xzf "$folder/$1.tar.gz" -C "$fresh" --strip-components=1
  "$fresh/bin/sluice" --version >/dev/null || { echo "the programs do not run here; see deploy/archive.md" >&2; return 1; }
  mv -T "$fresh" "$folder/programs-$1"
  rm -f "$folder/$1.tar.gz"
}

# runs NAME: tells whether the program that was started under this name is alive, and not another with its number.
runs() {
  local pid
  pid=$(cat "$folder/run/$1.pid" 2>/dev/null) && [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == "$folder"/programs-* ]]
}

# start NAME LINE PROGRAM [FLAG...]: starts it, and waits until it has printed the line.
start() {
  local name=$1 line=$2
  shift 2
  if runs "$name"; then
    echo "$name runs already"
    return
  fi
  mkdir -p "$folder/run" "$folder/logs"
  : >"$folder/run/$name.out"
  setsid nohup "$@" </dev/null >"$folder/run/$name.out" 2>>"$folder/logs/$name.log" &
  echo $! >"$folder/run/$name.pid"
  for _ in $(seq 300); do
    grep -q "$line" "$folder/run/$name.out" && { echo "$name started"; return; }
    kill -0 $! 2>/dev/null || break
    sleep 0.1
  done
  echo "$name did not start; the last lines of $folder/logs/$name.log:" >&2
  tail -n 15 "$folder/logs/$name.log" >&2
  return 1
}

start_coordinator() { # HASH MODEL ADDRESS WORKERS [FLAG...]
  local bin=$folder/programs-$1/bin
  ln -sfn "$folder/programs-$1" "$programs"
  [ -s "$folder/cluster-token" ] || od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >"$folder/cluster-token"
  if [ ! -s "$folder/user-token" ]; then
    rm -f "$folder/tokens.json"
    "$bin/sluice" token create --file "$folder/tokens.json" --name up >"$folder/user-token" 2>/dev/null
  fi
  # Strangers have no token; what goes over the network is in the clear.
  start coordinator '^listening on' "$bin/sluice-coordinator" --model "$2" --state-dir "$folder/state" --host "$3" \
    --insecure-listen --min-workers "$4" --cluster-token-file "$folder/cluster-token" --tokens "$folder/tokens.json" "${@:5}"
}
cluster_token() { cat "$folder/cluster-token"; }
user_token() { cat "$folder/user-token"; }

start_worker() { # HASH COORDINATOR ADDRESS NAME TOKEN [FLAG...]
  ln -sfn "$folder/programs-$1" "$programs"
  printf %s "$5" >"$folder/cluster-token"
  start worker 'metrics on' "$folder/programs-$1/bin/sluice-worker" --coordinator "$2" --host "$3" --advertise "$3" --name "$4" \
    --insecure-listen --cache-dir "$folder/models" --cluster-token-file "$folder/cluster-token" "${@:6}"
}

cluster() { # COORDINATOR [FLAG...]
  "$programs/bin/sluice" cluster --coordinator "$1" --token-file "$folder/user-token" "${@:2}"
}

# Waits until the coordinator has so many workers.
await() { # COORDINATOR WORKERS
  local found=0
  for _ in $(seq 120); do
    found=$(cluster "$1" --json | grep -o '"metrics_address"' | wc -l) || true
    [ "$found" -lt "$2" ] || return 0
    sleep 1
  done
  echo "$found of $2 workers came within 2 minutes; their logs are in ~/sluice-cluster/logs" >&2
  return 1
}

status() {
  local name
  for name in coordinator worker; do
    if runs "$name"; then
      echo "$name runs, process $(cat "$folder/run/$name.pid")"
    elif [ -e "$folder/run/$name.pid" ]; then
      echo "$name does not run"
    fi
  done
}

# Ends the worker first: it leaves in order, while the coordinator is there.
stop_all() {
  local name pid
  for name in worker coordinator; do
    if runs "$name"; then
      pid=$(cat "$folder/run/$name.pid")
      kill "$pid"
      for _ in $(seq 600); do
        runs "$name" || break
        sleep 0.1
      done
      runs "$name" && kill -9 "$pid" && echo "$name was killed: it did not end within a minute"
      echo "$name ended"
    fi
    rm -f "$folder/run/$name.pid"
  done
}

purge() { rm -rf "$folder"; }
