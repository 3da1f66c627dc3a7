"""Tests what a machine without a CUDA Toolkit builds, in a build that may have one.

    python3 no_toolkit_test.py CMAKE SOURCE BUILD

Configures SOURCE once more, in a folder of its own and with the toolkit hidden from CMake:
`SLUICE_CUDA=AUTO` must come out as a build without CUDA. Every command of it that makes
the programs' objects and libraries must be one that BUILD, which is up to date, has run, so
that nothing needs to be compiled again; none may have read a header of the toolkit. Then
the programs are linked as that machine would link them, and asked for a GPU.
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

PROGRAMS = ["sluice", "sluice-coordinator", "sluice-worker"]
# The settings of the cache that both configurations share.
SHARED = ["CMAKE_BUILD_TYPE", "CMAKE_CXX_COMPILER", "CMAKE_CXX_FLAGS", "CMAKE_EXE_LINKER_FLAGS",
          "CMAKE_MAKE_PROGRAM", "CMAKE_COMPILE_WARNING_AS_ERROR"]
WITHOUT = "this build of Sluice is without CUDA"
# Names of a toolkit's programs, headers and libraries.
NEEDS_CUDA = re.compile(r"(^|/)nvcc(\s|$)|\.cu(\s|$)|cudart|cublas|libcuda|/tests/cuda/")


def read_cache(build):
    cache = {}
    with open(os.path.join(build, "CMakeCache.txt")) as f:
        for line in f:
            entry = re.match(r"([^#/:][^:]*):[A-Z]+=(.*)", line.rstrip("\n"))
            if entry:
                cache[entry.group(1)] = entry.group(2)
    return cache


def toolkits(cache):
    """(folders of toolkits that CMake might find, by all their names; folders with all kinds
    of programs that have an nvcc, too)"""
    roots = glob.glob("/usr/local/cuda*") + glob.glob("/opt/cuda*")
    programs = [cache.get("CUDAToolkit_NVCC_EXECUTABLE", ""), cache.get("CMAKE_CUDA_COMPILER", "")]
    programs += [os.path.join(folder, "nvcc")
                 for folder in [*os.environ["PATH"].split(":"), "/usr/local/bin", "/usr/bin", "/bin"]]
    among_others = set()
    for program in programs:
        if not os.path.isfile(program):
            continue
        for name in (program, os.path.realpath(program)):
            folder = os.path.dirname(name)
            if os.path.dirname(folder) in ("/", "/usr", "/usr/local"):
                among_others.add(folder)
            else:
                roots.append(os.path.dirname(folder))
    return sorted({name for root in roots for name in (root, os.path.realpath(root))}), sorted(among_others)


def within(path, roots):
    return any(path == root or path.startswith(root + "/") for root in roots)


def hidden(cache):
    """Returns (roots, environment, flags of CMake) that hide all toolkits."""
    roots, among_others = toolkits(cache)
    folders = [os.path.join(root, folder) for root in roots
               for folder in ("", "bin", "include", "lib", "lib64", "lib64/stubs", "lib/stubs")]
    flags = []
    for folder in among_others:
        if any(within(value, [folder]) and not value.endswith("nvcc") for value in cache.values()):
            # Debian's package is beside the compiler: CMake can only be told not to look for it.
            flags.append("-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON")
        else:
            folders.append(folder)
    env = {}
    for name, value in os.environ.items():
        if name.startswith("CUDA"):
            continue
        if name.endswith("PATH"):
            value = ":".join(p for p in value.split(":") if not within(p, roots))
        env[name] = value
    flags.append("-DCMAKE_IGNORE_PATH=" + ";".join(f.rstrip("/") for f in folders))
    flags.append("-DCMAKE_IGNORE_PREFIX_PATH=" + ";".join(roots))
    return roots, env, flags


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


def must(command, **more):
    done = run(command, **more)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def output_of(command):
    """Returns the output of a compiler or linker; None if the command is neither."""
    words = shlex.split(command)
    return words[words.index("-o") + 1] if "-o" in words else None


class Builds:
    def __init__(self, cmake, source, build, bare):
        self.cmake, self.source, self.build, self.bare = cmake, source, build, bare
        self.cache = read_cache(build)
        self.ninja = self.cache["CMAKE_MAKE_PROGRAM"]
        self.roots, self.env, self.flags = hidden(self.cache)

    def configure(self, cuda):
        build_type = self.cache["CMAKE_BUILD_TYPE"].upper()
        shared = [f"-D{name}={self.cache[name]}" for name in [*SHARED, f"CMAKE_CXX_FLAGS_{build_type}"]
                  if name in self.cache]
        return run([self.cmake, "-S", self.source, "-B", self.bare, "-G", "Ninja",
                    f"-DSLUICE_CUDA={cuda}", "-DBUILD_TESTING=OFF", *shared, *self.flags], env=self.env)

    def commands(self, build, targets):
        """Returns {command as it would be in a build folder called BUILD: command} for the targets."""
        lines = must([self.ninja, "-C", build, "-t", "commands", *targets]).splitlines()
        return {line.replace(os.path.realpath(build), "BUILD").replace(build, "BUILD"): line
                for line in lines if not line.startswith("ninja: ")}


def check_configuration(builds):
    done = builds.configure("AUTO")
    assert done.returncode == 0, done.stderr
    assert "Without CUDA: no CUDA Toolkit with nvcc was found" in done.stdout, done.stdout
    for name, value in read_cache(builds.bare).items():
        if not name.startswith("CMAKE_IGNORE"):
            assert not within(value, builds.roots), f"found all the same: {name}={value}"


def check_commands(builds):
    """Returns the command of each program."""
    bare = builds.commands(builds.bare, PROGRAMS)
    built = builds.commands(builds.build, [])
    by_output = {output_of(command): command for command in built}
    links = {f"bin/{program}": program for program in PROGRAMS}
    programs, objects = {}, []
    for command, raw in bare.items():
        words = [word for word in shlex.split(command) if within(word.lstrip("-IL"), builds.roots)]
        assert not words and not NEEDS_CUDA.search(command), f"needs CUDA: {raw}"
        output = output_of(command)
        if output in links:
            programs[links[output]] = raw
            continue
        assert command in built, (f"not a command of {builds.build}:\n{command}\nwhich has\n"
                                  f"{by_output.get(output, 'nothing like it')}")
        if output and output.endswith(".o"):
            objects.append(output)
    assert sorted(programs) == PROGRAMS, programs
    assert len(objects) > 100, len(objects)
    print(f"{len(bare)} commands, {len(objects)} of them compile; all but the last links are the build's")
    return programs, objects


def check_headers(builds, objects):
    """Checks that what the build compiled has read nothing of a toolkit, nor what stands for one."""
    name, headers = None, {}
    for line in must([builds.ninja, "-C", builds.build, "-t", "deps", *objects]).splitlines():
        if line.startswith(" "):
            headers[name].append(line.strip())
        elif line:
            name, state = line.split(":", 1)
            assert "VALID" in state, f"{name} is not built, or not up to date:{state}"
            headers[name] = []
    assert set(headers) == set(objects), set(objects) - set(headers)
    for name, paths in headers.items():
        for path in paths:
            path = os.path.normpath(os.path.join(builds.build, path))
            assert not within(path, builds.roots) and "/tests/" not in path, f"{name} reads {path}"


def check_warnings(builds):
    if builds.cache.get("CMAKE_COMPILE_WARNING_AS_ERROR", "OFF") != "ON":
        print("warnings are no errors in this build")
        return
    for command in builds.commands(builds.build, []):
        if (output_of(command) or "").endswith(".o"):
            assert "-Werror" in command, f"takes warnings: {command}"


def check_programs(builds, links):
    """Links them from the build's own objects, and asks them for a GPU."""
    for name, command in links.items():
        to = os.path.join(builds.bare, name)
        linked = command.replace(f" -o bin/{name} ", f" -o {shlex.quote(to)} ")
        assert linked != command, command
        must(linked, shell=True, cwd=builds.build, env=builds.env)
        assert not re.search(r"libcu|libnv", must(["ldd", to])), name
    model = os.path.join(builds.source, "tests", "models", "llama-kjv")
    request = os.path.join(builds.bare, "in.jsonl")
    with open(request, "w") as f:
        f.write('{"prompt": "In the", "max_tokens": 2}\n')
    sluice = [os.path.join(builds.bare, "sluice"), "run", "--model", model, "-i", request,
              "-o", os.path.join(builds.bare, "out.jsonl"), "--quiet", "--host-memory", "512MiB"]
    must(sluice)
    for command in (sluice, [os.path.join(builds.bare, "sluice-worker"), "--model", model]):
        name = os.path.basename(command[0])
        done = run([*command, "--device", "cuda"], timeout=60)
        last = done.stderr.rstrip("\n").split("\n")[-1]
        assert done.returncode == 1 and done.stdout == "", done
        assert last.startswith(f"{name}: --device cuda:0: {WITHOUT}"), last
    print(last)


def check_that_on_insists(builds):
    done = builds.configure("ON")
    assert done.returncode != 0, done.stdout
    said = " ".join(done.stderr.split())
    assert "SLUICE_CUDA=ON, and no CUDA Toolkit with nvcc was found" in said, done.stderr


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    cmake, source, build = sys.argv[1:]
    bare = os.path.realpath(tempfile.mkdtemp(prefix="sluice-no-toolkit-"))
    try:
        builds = Builds(cmake, source, build, bare)
        print("hidden:", " ".join(builds.roots) or "nothing, for there is no toolkit")
        check_configuration(builds)
        links, objects = check_commands(builds)
        check_headers(builds, objects)
        check_warnings(builds)
        check_programs(builds, links)
        check_that_on_insists(builds)
    finally:
        shutil.rmtree(bare, ignore_errors=True)


if __name__ == "__main__":
    main()
