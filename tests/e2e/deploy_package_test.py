"""The Debian package: installed in a bare Debian 12, its services run under systemd, with all that their units
forbid, and take a job to its end; what purge takes; what systemd says of the units."""

import glob
import json
import os
import re
import shutil
import sys

import deploy_support as support
import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
UNITS = sorted(glob.glob(os.path.join(support.DEPLOY, "systemd", "*.service")))
MOST_EXPOSURE = 3.0

SERVE = r"""
for unit in sluice-coordinator sluice-worker; do
  [ "$(systemctl is-enabled $unit)" = disabled ]
done
sed -i 's|/models/MODEL|/models/llama-kjv|' /etc/sluice/coordinator.toml
printf 'plan = "off"\npolicy = "w=0/40/60"\n' >>/etc/sluice/coordinator.toml
printf 'no-profile = true\nthreads = 1\nhost-memory = "256MiB"\ndisk-space = "64MiB"\n' >>/etc/sluice/worker.toml
(sed 's|/sluice/worker"|/sluice/worker-two"|' /etc/sluice/worker.toml; printf 'port = 0\nmetrics-port = 0\n') \
  >/etc/sluice/worker-two.toml
printf 'min-workers = 2\n' >>/etc/sluice/coordinator.toml
for name in coordinator worker; do runuser -u sluice -- sluice-$name --config /etc/sluice/$name.toml --check-config; done
systemctl start sluice-coordinator sluice-worker sluice-worker@two
sluice submit -i /in.jsonl --wait -o /out.jsonl
sluice cluster
# A reload takes the log's level from the file, and ends nothing.
printf 'log-level = "debug"\n' | tee -a /etc/sluice/coordinator.toml >>/etc/sluice/worker.toml
systemctl reload sluice-coordinator sluice-worker
for i in $(seq 60); do
  [ "$(journalctl -u sluice-coordinator -u sluice-worker | grep -c 'is read again')" = 2 ] && break
  sleep 0.5
  [ $i != 60 ]
done
for unit in sluice-coordinator sluice-worker sluice-worker@two; do
  systemctl show -p User -p NRestarts -p ActiveState $unit
  pid=$(systemctl show -p MainPID --value $unit)
  grep -E '^(Uid|CapEff|Seccomp|NoNewPrivs):' /proc/$pid/status
done
# io_uring is there, under the units' filter.
ls -l /proc/$(systemctl show -p MainPID --value sluice-worker)/fd | grep -c io_uring
# A coordinator that is killed comes back with its jobs; an upgrade restarts what runs.
kill -9 $(systemctl show -p MainPID --value sluice-coordinator)
for i in $(seq 60); do sluice list && break; sleep 0.5; done
dpkg -i /sluice.deb
for i in $(seq 60); do sluice list && break; sleep 0.5; done
systemctl stop sluice-worker sluice-worker@two sluice-coordinator
for unit in sluice-coordinator sluice-worker sluice-worker@two; do
  [ "$(systemctl show -p Result --value $unit)" = success ]
done
journalctl -u sluice-worker | grep -i -E 'seccomp|not permitted|SIGSYS' && exit 1
# Removed, it leaves its configuration; purged, the jobs.
touch /var/cache/sluice/x
apt-get remove -y sluice
[ -e /etc/sluice/coordinator.toml ] && [ -d /var/lib/sluice/worker ]
rm /etc/sluice/worker-two.toml
apt-get purge -y sluice
[ ! -e /etc/sluice ] && [ ! -e /var/cache/sluice ] && [ ! -e /var/lib/sluice/worker ]
[ -e /var/lib/sluice/coordinator/sluice.db ] && [ -d /var/lib/sluice/models ]
dpkg -i /sluice.deb
SLUICE_PURGE_JOBS=yes apt-get purge -y sluice
[ ! -e /var/lib/sluice ]
"""


def test_installed_services_take_a_job_to_its_end_and_purge_leaves_jobs(directory):
    support.need("debootstrap", "systemd-nspawn", "dpkg-shlibdeps")
    script = os.path.join(support.DEPLOY, "debian", "build.sh")
    first, second = (support.command(script, support.BUILD, os.path.join(directory, d)).split()[-1]
                     for d in ("first", "second"))
    with open(first, "rb") as a, open(second, "rb") as b:
        assert a.read() == b.read(), "the same build made two packages"
    root = support.debian(directory, include=("systemd", "systemd-sysv", "dbus"))
    shutil.copy(first, os.path.join(root, "sluice.deb"))
    support.nspawn(root, "sh", "-c", "apt-get update -q && DEBIAN_FRONTEND=noninteractive "
                   "apt-get install -y -q --no-install-recommends /sluice.deb")
    shutil.copytree(LLAMA, os.path.join(root, "var/lib/sluice/models/llama-kjv"))
    lines = harness.mixed_requests(20)
    harness.write_lines(os.path.join(root, "in.jsonl"), lines)
    said = support.boot(root, SERVE)
    with open(os.path.join(root, "out.jsonl")) as f:
        got = harness.answers([json.loads(line) for line in f])
    _, expected = harness.run(LLAMA, lines)
    assert got == harness.answers(expected), "other answers than those of `sluice run`"
    assert said.count("\nUser=sluice") == 3 and said.count("\nNoNewPrivs:\t1") == 3, said
    assert said.count("\nCapEff:\t0000000000000000") == 3 and said.count("\nSeccomp:\t2") == 3, said
    assert "\nUid:\t0" not in said, said


def test_systemd_finds_no_fault_in_the_units_and_little_exposure(directory):
    support.need("systemd-analyze")
    assert len(UNITS) == 3, UNITS
    for unit in UNITS:
        with open(unit) as f:  # verify wants to see programs
            text = re.sub(r"(?m)^ExecStart=", f"ExecStart={harness.BIN}/", f.read())
        path = os.path.join(directory, os.path.basename(unit).replace("@", "@two"))
        with open(path, "w") as f:
            f.write(text)
        said = support.command("systemd-analyze", "verify", "--man=no", path)
        assert os.path.basename(path) not in said, said
        said = support.command("systemd-analyze", "security", "--offline=true", "--no-pager",
                               f"--threshold={int(MOST_EXPOSURE * 10)}", path)
        exposure = float(re.search(r"Overall exposure level for \S+: ([\d.]+)", said).group(1))
        assert exposure <= MOST_EXPOSURE, said
        print(f"{os.path.basename(unit)}: exposure {exposure}")


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
