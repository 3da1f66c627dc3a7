#!/usr/bin/env bash
# Brings a coordinator and workers up on plain machines, over ssh, and takes them down again.
#
#   deploy/ssh/up.sh HOSTS --archive FILE --model DIR [FLAG...]    start what does not run yet; flags go to the coordinator
#   deploy/ssh/up.sh HOSTS --status                                what runs where, and the cluster
#   deploy/ssh/up.sh HOSTS --stop                                  end all; jobs and their results stay
#   deploy/ssh/up.sh HOSTS --purge                                 --stop, and delete all that was put there, jobs too
#
#   HOSTS            a file with a machine a line: what ssh calls it; then, if that isn't it, the address at which the other
#                    machines reach it; then flags of its worker. # begins a comment. The first one has the coordinator, too.
#   --archive FILE   of deploy/archive/build.sh; goes to each machine, below ~/sluice-cluster
#   --model DIR      the model's directory on the first machine; the others fetch what they need
#
# SLUICE_SSH replaces "ssh -o BatchMode=yes -o ConnectTimeout=15".
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
read -r -a ssh <<<"${SLUICE_SSH:-ssh -o BatchMode=yes -o ConnectTimeout=15}"
usage() { sed -n '2,14s/^# \{0,1\}//p' "$0"; }
refuse() { echo "up.sh: $*" >&2; exit 2; }

action=start list= archive= model= flags=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --stop | --status | --purge) action=${1#--}; shift ;;
    --archive | --model)
      [ $# -ge 2 ] || refuse "$1 wants a value; --help says which"
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    *)
      if [ -z "$list" ]; then list=$1; else flags+=("$1"); fi
      shift
      ;;
  esac
done
[ -n "$list" ] || { usage >&2; exit 2; }
[ -f "$list" ] || refuse "there is no file $list; --help says what is in it"

# The machines: names for ssh, addresses, flags of workers.
names=() addresses=() workers=()
number=0
while IFS= read -r line || [ -n "$line" ]; do
  number=$((number + 1))
  read -r -a words <<<"${line%%#*}"
  [ ${#words[@]} -gt 0 ] || continue
  name=${words[0]} address=${words[0]##*@} rest=("${words[@]:1}")
  if [ ${#rest[@]} -gt 0 ] && [[ ${rest[0]} != -* ]]; then
    address=${rest[0]}
    rest=("${rest[@]:1}")
  fi
  [[ $name =~ ^[A-Za-z0-9_.@-]+$ && $name != -* ]] || refuse "$list, line $number: $name is no machine that ssh could reach; write [USER@]HOST"
  [[ $address =~ ^[A-Za-z0-9.-]+$ ]] || refuse "$list, line $number: $address is no host name or IPv4 address"
  [[ ${#rest[@]} -eq 0 || ${rest[0]} == -* ]] || refuse "$list, line $number: ${rest[0]} is no flag; see sluice-worker --help"
  for other in "${names[@]}"; do [ "$other" != "$name" ] || refuse "$list, line $number: $name is there twice"; done
  names+=("$name") addresses+=("$address") workers+=("${rest[*]}")
done <"$list"
[ ${#names[@]} -gt 0 ] || refuse "$list names no machine"
coordinator=${addresses[0]}:7070

# remote NAME FUNCTION [WORD...]: calls a function of machine.sh there.
remote() {
  local name=$1 words
  words=$(printf '%q ' "${@:2}")
  { cat "$here/machine.sh"; echo "$words"; } | "${ssh[@]}" "$name" bash -s
}
# everywhere FUNCTION [WORD...]: on all machines at once; each line says whose it is. Fails if one did.
everywhere() {
  local pids=() code=0 pid name
  for name in "${names[@]}"; do
    (remote "$name" "$@" 2>&1 | sed "s|^|$name: |") &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=1; done
  return "$code"
}

case "$action" in
  stop | purge) everywhere stop_all && { [ "$action" = stop ] || everywhere purge; exit; } ;;
  status)
    everywhere status || true
    remote "${names[0]}" cluster "$coordinator"
    exit
    ;;
esac
[ "$action" = start ] || exit 1

[ -n "$archive" ] || refuse "--archive is missing: deploy/archive/build.sh makes one of a build"
[ -f "$archive" ] || refuse "--archive: there is no file $archive; deploy/archive/build.sh makes one of a build"
[ -n "$model" ] || refuse "--model is missing: the model's directory on ${names[0]}"
copies=()
hash=$(sha256sum "$archive" | cut -c1-16)
for name in "${names[@]}"; do
  (remote "$name" has "$hash" 2>/dev/null || {
    echo "$name: copying $(du -h "$archive" | cut -f1)"
    "${ssh[@]}" "$name" "umask 077; mkdir -p sluice-cluster && cat >sluice-cluster/$hash.tar.gz" <"$archive"
    remote "$name" unpack "$hash"
  }) &
  copies+=($!)
done
for copy in "${copies[@]}"; do wait "$copy" || { echo "up.sh: not every machine could be reached and given the programs" >&2; exit 1; }; done

remote "${names[0]}" start_coordinator "$hash" "$model" "${addresses[0]}" "${#names[@]}" "${flags[@]}"
token=$(remote "${names[0]}" cluster_token)
for i in "${!names[@]}"; do
  read -r -a words <<<"${workers[i]}"
  remote "${names[i]}" start_worker "$hash" "$coordinator" "${addresses[i]}" "${names[i]##*@}" "$token" "${words[@]}"
done
remote "${names[0]}" await "$coordinator" "${#names[@]}"
(umask 077 && remote "${names[0]}" user_token >"$list.token")
cat <<END

${#names[@]} workers are there. To submit:

  sluice --coordinator $coordinator submit --token-file $list.token -i prompts.jsonl --wait -o answers.jsonl

or, where only ssh gets through: ssh -N -L 7070:$coordinator ${names[0]} &, and 127.0.0.1:7070 instead.
To see: deploy/ssh/up.sh $list --status. To end: deploy/ssh/up.sh $list --stop
END
