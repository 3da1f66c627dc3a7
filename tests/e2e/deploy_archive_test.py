"""The archive, the wheel and the Debian package with its own libraries: what is in them, and that they run in a bare Debian 12
and 13, which have none of the libraries that Sluice is built with."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import deploy_support as support
import harness
from deploy_support import packed

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
PROMPTS = os.path.join(support.DEPLOY, "demo-prompts.jsonl")
MOST_BYTES = 120 * 1000 * 1000

FROM_THE_ARCHIVE = r"""
tar xzf /sluice.tar.gz && /sluice-*/bin/sluice run -q --model /sluice-*/share/sluice/demo/llama-kjv \
  -i /sluice-*/share/sluice/demo/prompts.jsonl -o /archive.jsonl
for program in sluice sluice-coordinator sluice-worker; do /sluice-*/bin/$program --version; done
"""
FROM_THE_WHEEL = r"""
python3 -m venv /venv
/venv/bin/pip install -q --no-index --disable-pip-version-check /sluice-*.whl && /venv/bin/sluice run -q \
  --model /model -i /prompts.jsonl -o /wheel.jsonl
PATH=/venv/bin:$PATH
for program in sluice sluice-coordinator sluice-worker; do $program --version; done
python3 -m sluice.demo -q | wc -l
sluice run --model /nowhere -i /prompts.jsonl -o - || echo "refused with $?"
sluice-parquet requests in.parquet --prompt '{a}' || echo "refused with $?"
"""
FROM_THE_PACKAGE = r"""
sluice run -q --model /model -i /prompts.jsonl -o /package.jsonl
for program in sluice sluice-coordinator sluice-worker; do $program --version; done
"""


def expected():
    with open(PROMPTS) as f:
        return harness.answers(harness.run(LLAMA, f.read().splitlines())[1])


def answers(path):
    with open(path) as f:
        return harness.answers([json.loads(line) for line in f])


def sh(root, script):
    return support.nspawn(root, "sh", "-euc", script, flags=("--private-network",))


def runs_in(directory, suite):
    support.need("debootstrap", "systemd-nspawn")
    root = support.debian(directory, suite)
    shutil.copy(packed("archive"), os.path.join(root, "sluice.tar.gz"))
    said = sh(root, FROM_THE_ARCHIVE)
    assert len(re.findall(r"(?m)^\d+\.\d+\.\d+\S*$", said)) == 3, said
    wanted = expected()
    assert answers(os.path.join(root, "archive.jsonl")) == wanted, "other answers than those of the build"

    root = support.debian(os.path.join(directory, "python"), suite, ("python3-venv",))
    shutil.copy(packed("wheel"), root)
    shutil.copytree(LLAMA, os.path.join(root, "model"))
    shutil.copy(PROMPTS, os.path.join(root, "prompts.jsonl"))
    said = sh(root, FROM_THE_WHEEL)
    assert len(re.findall(r"(?m)^\d+\.\d+\.\d+\S*$", said)) == 3, said
    assert f"\n{len(wanted)}\n" in said and said.count("refused with 2") == 2, said
    assert "pip install 'sluice[parquet]'" in said, said
    assert answers(os.path.join(root, "wheel.jsonl")) == wanted, "other answers than those of the build"

    shutil.copy(packed("debian", "--bundled"), os.path.join(root, "sluice.deb"))
    support.nspawn(root, "sh", "-c", "DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends /sluice.deb")
    said = sh(root, FROM_THE_PACKAGE)
    assert len(re.findall(r"(?m)^\d+\.\d+\.\d+\S*$", said)) == 3, said
    assert answers(os.path.join(root, "package.jsonl")) == wanted, "other answers than those of the build"


def test_debian_12_runs_archive_wheel_and_package(directory):
    runs_in(directory, "bookworm")


def test_debian_13_runs_archive_wheel_and_package(directory):
    runs_in(directory, "trixie")


def test_what_is_no_build_is_refused(directory):
    for script in ("archive/build.sh", "archive/collect.sh", "wheel/build.sh", "debian/build.sh"):
        path = os.path.join(support.DEPLOY, script)
        for words, said in ((("/none", directory), "/none has no programs; build them first: cmake --preset release && "
                             "cmake --build build/release\n"),
                            (("/none", directory, "more"), f"{os.path.basename(script)} takes no word behind [BUILD [FOLDER]]: "
                             f"more; see {path} --help\n")):
            done = subprocess.run([path, *words], capture_output=True, text=True)
            assert (done.returncode, done.stdout, done.stderr) == (2, "", said), (path, done)
        done = subprocess.run([path, "--help"], capture_output=True, text=True)
        assert done.returncode == 0 and "BUILD" in done.stdout and "set -" not in done.stdout, (path, done)
    assert not os.listdir(directory)


def test_packages_are_whole_small_and_the_same_each_time(directory):
    for kind in ("archive", "wheel"):
        first = packed(kind)
        second = support.command(os.path.join(support.DEPLOY, kind, "build.sh"), support.BUILD, directory).split()[-1]
        with open(first, "rb") as a, open(second, "rb") as b:
            data = a.read()
            assert data == b.read(), f"the same build made two {kind}s"
        assert len(data) <= MOST_BYTES, f"{first}: {len(data)} bytes"
        print(f"{os.path.basename(first)}: {len(data) / 1e6:.1f} MB")
    subprocess.run(["tar", "xzf", packed("archive")], cwd=directory, check=True)
    tree, = glob.glob(os.path.join(directory, "sluice-*-linux-*/"))
    libraries = set(os.listdir(os.path.join(tree, "lib/sluice")))
    assert "libdnnl.so.2" in libraries and not {"libc.so.6", "libstdc++.so.6", "libgcc_s.so.1"} & libraries, libraries
    assert not [name for name in libraries if name.startswith(("libcuda", "libcublas", "libnccl"))], libraries
    # Each has its licence, and each library that one loads is there or the system's.
    with open(os.path.join(tree, "share/doc/sluice/licences/libraries.txt")) as f:
        packages = dict(line.split()[:2] for line in f)
    assert set(packages) == libraries, set(packages) ^ libraries
    for package in packages.values():
        assert os.path.getsize(os.path.join(tree, "share/doc/sluice/licences", package)) > 0, package
    # The bill of materials has the libraries, and what was compiled in.
    with open(os.path.join(tree, "share/doc/sluice/sbom.spdx.json")) as f:
        bill = json.load(f)
    names = {package["name"] for package in bill["packages"]}
    assert {"sluice", "libcli11-dev", "libtomlplusplus-dev", *packages.values()} <= names, names
    assert "libgtest-dev" not in names, "tests are no part of the programs"
    linked = {link["relatedSpdxElement"] for link in bill["relationships"] if link["relationshipType"] == "DYNAMIC_LINK"}
    assert "SPDXRef-libdnnl2" in linked and "SPDXRef-libcli11-dev" not in linked, linked
    for program in os.listdir(os.path.join(tree, "bin")):
        loaded = support.command("ldd", os.path.join(tree, "bin", program))
        for name, path in re.findall(r"(\S+) => (\S+)", loaded):
            assert (name in libraries) == os.path.realpath(path).startswith(os.path.realpath(tree)), loaded
    with zipfile.ZipFile(packed("wheel")) as wheel:
        names = {os.path.basename(name) for name in wheel.namelist()}
        assert libraries <= names, libraries - names


def test_the_wheels_tag_is_what_its_symbols_need(directory):
    auditwheel = support.pip_program("auditwheel", "auditwheel")
    name = os.path.basename(packed("wheel"))
    tag, = re.findall(r"-py3-none-(\w+)\.whl$", name)
    said = " ".join(support.command(auditwheel, "show", packed("wheel")).split())
    assert f'is consistent with the following platform tag: "{tag}"' in said, said


def test_what_cannot_be_packed_is_refused(directory):
    def refused(*words):
        done = subprocess.run([os.path.join(support.DEPLOY, "archive", "collect.sh"), *words], capture_output=True, text=True)
        return done.returncode, done.stderr
    assert refused(directory, os.path.join(directory, "new")) == (
        2, f"{directory} has no programs; build them first: cmake --preset release && cmake --build build/release\n")
    assert refused(support.BUILD, directory) == (
        2, f"{directory} is there already; delete it, or name another folder\n")
    # One that asks more of the system than is promised: here, as nothing is.
    with open(os.path.join(support.DEPLOY, "archive", "collect.sh")) as f:
        text = f.read().replace("most_glibc=2.34", "most_glibc=2.2.5")
    copy = os.path.join(directory, "deploy", "archive", "collect.sh")
    os.makedirs(os.path.dirname(copy))
    open(os.path.join(directory, "LICENSE"), "w").close()
    shutil.copy(os.path.join(support.DEPLOY, "version.sh"), os.path.join(directory, "deploy"))
    shutil.copy(os.path.join(support.DEPLOY, "..", "CMakeLists.txt"), directory)
    with open(copy, "w") as f:
        f.write(text)
    done = subprocess.run(["bash", copy, support.BUILD, os.path.join(directory, "old")], capture_output=True, text=True)
    assert done.returncode == 1 and re.search(r"need GLIBC_2\.34, and promise to do with GLIBC_2\.2\.5", done.stderr), done
    # Libraries that no package brings have no licence that could go along: here, a dpkg that knows nothing.
    path = os.path.join(directory, "bin")
    os.mkdir(path)
    with open(os.path.join(path, "dpkg-query"), "w") as f:
        f.write("#!/bin/sh\nexit 1\n")
    os.chmod(os.path.join(path, "dpkg-query"), 0o755)
    done = subprocess.run([os.path.join(support.DEPLOY, "archive", "collect.sh"), support.BUILD, os.path.join(directory, "x")],
                          capture_output=True, text=True, env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"})
    assert done.returncode == 1 and "belongs to no Debian package" in done.stderr, done


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
