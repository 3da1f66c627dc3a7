#!/usr/bin/env python3
"""Prints the bill of materials of a build's programs, as SPDX 2.3 in JSON: the Debian packages whose libraries they load, and
those whose headers were compiled into them; and the CUDA Toolkit, if the build has kernels for GPUs.

    deploy/sbom.py BUILD VERSION >sbom.spdx.json     BUILD: build/release, which has to be built; deploy/version.sh knows VERSION

It asks ninja which headers each object was made of, ldd which libraries are loaded, and dpkg whose they are. What no package
has is an error. SOURCE_DATE_EPOCH is the time that it names (0 without), so that the same build gives the same bytes."""

import datetime
import glob
import json
import os
import re
import subprocess
import sys

CUDA = "/usr/local/cuda"
PROGRAMS = ("sluice", "sluice-coordinator", "sluice-worker")


def fail(what):
    sys.exit(f"sbom.py: {what}")


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def owners():
    """Returns the package of each file that dpkg knows, by its path with / and /usr merged."""
    owner = {}
    for path in glob.glob("/var/lib/dpkg/info/*.list"):
        package = os.path.basename(path)[:-len(".list")].split(":")[0]
        with open(path) as f:
            for line in f:
                owner[merged(line.rstrip("\n"))] = package
    return owner


def merged(path):
    return re.sub(r"^/(lib|lib64|bin|sbin)/", r"/usr/\1/", path)


def packages_of(files, owner):
    """Returns the packages of these files."""
    packages = set()
    for file in files:
        name = next((owner[merged(p)] for p in (file, os.path.realpath(file)) if merged(p) in owner), None)
        if name is None:
            fail(f"{file} belongs to no Debian package; build with those of deploy/packages.txt")
        packages.add(name)
    return packages


def headers(build):
    """Returns the system's headers of all objects but those of tests."""
    found, counts = set(), False
    for line in output("ninja", "-C", build, "-t", "deps").splitlines():
        if line.endswith(")") and ": #deps" in line:
            counts = not line.startswith("tests/")
        elif counts and line.startswith("    /usr/"):
            found.add(os.path.realpath(line.strip()))
    if not found:
        fail(f"{build} knows no headers; build it with ninja: cmake --preset release && cmake --build {build}")
    return found


def loaded(build):
    """Returns the shared libraries that the programs load."""
    found = set()
    for program in PROGRAMS:
        path = os.path.join(build, "bin", program)
        if not os.access(path, os.X_OK):
            fail(f"{build} has no programs; build them first: cmake --preset release && cmake --build {build}")
        found.update(re.findall(r"=> (/\S+)", output("ldd", path)))
    return found


def cuda_version():
    path = os.path.join(CUDA, "include", "cuda_runtime_api.h")
    with open(path) as f:
        found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", f.read())
    if not found:
        fail(f"{path} does not tell the CUDA Toolkit's version")
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}"


def document(version, created, libraries, compiled, cuda):
    def entry(name, number, purl, supplier):
        return {"name": name, "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "versionInfo": number,
                "supplier": supplier, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
                "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]}
    names = sorted(libraries | compiled)
    known = [line.split("\t") for line in
             output("dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\n", *names).splitlines()]
    machine = output("dpkg", "--print-architecture").strip()
    packages = [entry("sluice", version, f"pkg:generic/sluice@{version}", "NOASSERTION")]
    links = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-sluice")]
    for name, number, architecture in sorted(known):
        if architecture not in (machine, "all"):
            continue
        escaped = number.replace(":", "%3A").replace("+", "%2B")
        packages.append(entry(name, number, f"pkg:deb/debian/{name.replace('+', '%2B')}@{escaped}?arch={architecture}",
                              "Organization: Debian"))
        link = "DYNAMIC_LINK" if name in libraries else "BUILD_DEPENDENCY_OF"
        pair = ("SPDXRef-sluice", packages[-1]["SPDXID"])
        links.append((pair[0], link, pair[1]) if name in libraries else (pair[1], link, pair[0]))
    if cuda:
        packages.append(entry("cuda-toolkit", cuda, f"pkg:generic/cuda-toolkit@{cuda}", "Organization: NVIDIA"))
        links.append(("SPDXRef-sluice", "STATIC_LINK", "SPDXRef-cuda-toolkit"))
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"sluice-{version}",
            "documentNamespace": f"https://spdx.org/spdxdocs/sluice-{version}",
            "creationInfo": {"created": created, "creators": ["Tool: sbom.py"]}, "packages": packages,
            "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in links]}


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, version = sys.argv[1:]
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    owner, compiled = owners(), headers(build)
    toolkit = {path for path in compiled if path.startswith(os.path.realpath(CUDA) + "/")}
    json.dump(document(version, created.strftime("%Y-%m-%dT%H:%M:%SZ"), packages_of(loaded(build), owner),
                       packages_of(compiled - toolkit, owner), cuda_version() if toolkit else None), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
