#!/usr/bin/env python3
"""Prints what Clang finds in the house: by clang-tidy's checks (.clang-tidy), and locks that are not held.

    deploy/lint.py [--build DIR] [--jobs N] [FILE...]

Looks at each FILE, or at every C++ source, with the flags that the build folder DIR (build/clang) compiles it
with. DIR is one of the preset clang, which compiles each source alone and without precompiled headers; what is
generated must be there: cmake --preset clang && cmake --build build/clang --target sluice_proto_sources. Production sources get all of
.clang-tidy, tests that have locks only -Wthread-safety. A source that passed is not looked at again before it,
anything that it includes, its flags, .clang-tidy or the machine's -dev packages change, in whichever checkout:
$XDG_CACHE_HOME/sluice/lint (~/.cache/sluice/lint) remembers it for 60 days. Exits with 1 if anything is found, with 2
if it cannot look.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

INCLUDE = re.compile(rb'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
PACKAGES = ("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\\n", "*-dev")  # who has system headers
FOLDERS = ("-I", "-isystem", "-iquote")
KEPT_SECONDS = 60 * 24 * 3600  # how long a verdict that nobody asks for is remembered
LOCKS = re.compile(rb"Mutex|ABSL_\w+_BY|ABSL_\w*LOCK")


@functools.lru_cache(maxsize=None)
def read(path):
    """(hash of the file's content, the names that it includes, whether it has to do with locks)"""
    with open(path, "rb") as file:
        content = file.read()
    names = [name.decode() for name in INCLUDE.findall(content)]
    return hashlib.sha256(content).hexdigest(), names, bool(LOCKS.search(content))


def compile_flags(command):
    """Returns the flags that say how a source is read, without compiler, input and output."""
    words = shlex.split(command)
    while not words[0].startswith("-"):
        del words[0]  # the launcher and the compiler
    flags, skip = [], False
    for word, after in zip(words, words[1:] + [""]):
        if not skip and word not in ("-c", "-o"):
            flags.append(word)
        skip = word in ("-o", "-c")
    return flags


class Lint:
    def __init__(self, root, build):
        self.root, self.build = os.path.realpath(root), os.path.realpath(build)
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self.cache = os.path.join(cache, "sluice", "lint")
        os.makedirs(self.cache, exist_ok=True)
        self.config = os.path.join(self.root, ".clang-tidy")
        tools = b""
        for tool in ("clang-tidy", "clang++"):
            tools += subprocess.run([tool, "--version"], check=True, capture_output=True).stdout
        tools += read(self.config)[0].encode()
        if shutil.which(PACKAGES[0]):
            tools += subprocess.run(PACKAGES, check=True, capture_output=True).stdout
        self.tools = hashlib.sha256(tools).hexdigest()

    def sources(self):
        """{path from the root: (flags, folder to run in)}: one entry for a source compiled in several ways."""
        with open(os.path.join(self.build, "compile_commands.json")) as file:
            commands = json.load(file)
        found = {}
        for entry in commands:
            path = os.path.relpath(os.path.realpath(entry["file"]), self.root)
            if path.endswith(".cc") and not path.startswith(("..", "build/")):
                found.setdefault(path, (compile_flags(entry["command"]), entry["directory"]))
        return found

    def key(self, path, flags):
        """Returns a hash that changes with all that the verdict depends on; None if the verdict is known to be good."""
        folders = [self.root]
        for flag, after in zip(flags, flags[1:] + [""]):
            for kind in FOLDERS:
                if flag.startswith(kind):
                    folders.append(os.path.realpath(flag[len(kind):] or after))
        folders = [f for f in folders if f.startswith((self.root, self.build))]
        seen, waiting = {}, [os.path.join(self.root, path)]
        while waiting:
            file = waiting.pop()
            if file in seen:
                continue
            seen[file], names, _ = read(file)
            for name in names:
                for folder in [os.path.dirname(file), *folders]:
                    included = os.path.normpath(os.path.join(folder, name))
                    if os.path.isfile(included):
                        waiting.append(included)
                        break
        tests = os.path.join(self.root, "tests/")
        if path.startswith("tests/") and not any(read(file)[2] for file in seen if file.startswith(tests)):
            return None
        text = json.dumps([self.tools, self.command(path, flags), sorted(seen.items())])
        return hashlib.sha256(text.replace(self.build, "BUILD").replace(self.root, "ROOT").encode()).hexdigest()

    def command(self, path, flags):
        """Returns the command that looks at a source."""
        file = os.path.join(self.root, path)
        flags = [*flags, "-Wno-unknown-warning-option"]
        if path.startswith("tests/"):
            return ["clang++", "-fsyntax-only", file, *flags, "-Wno-everything", "-Wthread-safety", "-Werror"]
        return ["clang-tidy", "--quiet", "--config-file=" + self.config, file, "--", *flags, "-Wthread-safety"]

    def look(self, path, flags, directory):
        """Returns what there is to say about a source; nothing if it is good."""
        done = subprocess.run(self.command(path, flags), cwd=directory, capture_output=True, text=True)
        if done.returncode == 0:
            return ""
        return done.stdout + "".join(line + "\n" for line in done.stderr.splitlines()
                                     if not re.match(r"\d+ warnings? (generated|treated)", line))

    def is_known(self, key):
        """Returns whether what has this key was found good before; keeps that remembered."""
        try:
            os.utime(os.path.join(self.cache, key))
        except FileNotFoundError:
            return False
        return True

    def forget_old(self):
        """Removes the verdicts that nobody asked for in a long time."""
        for entry in os.scandir(self.cache):
            with contextlib.suppress(FileNotFoundError):  # another run may do the same
                if time.time() - entry.stat().st_mtime > KEPT_SECONDS:
                    os.remove(entry.path)

    def run(self, wanted, jobs):
        """Looks at the sources; prints what is found, and returns in how many of them."""
        start, keys, bad = time.monotonic(), {}, 0
        for path, (flags, _) in wanted.items():
            key = self.key(path, flags)
            if key:
                keys[path] = key
        todo = [path for path, key in keys.items() if not self.is_known(key)]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            verdicts = {pool.submit(self.look, path, *wanted[path]): path for path in todo}
            for verdict in concurrent.futures.as_completed(verdicts):
                path = verdicts[verdict]
                if verdict.result():
                    bad += 1
                    print(f"{path}:\n{verdict.result()}", flush=True)
                else:
                    open(os.path.join(self.cache, keys[path]), "w").close()
        print(f"lint: {len(keys)} sources, {len(keys) - len(todo)} of them as they were, {bad} with findings; "
              f"{time.monotonic() - start:.0f} s")
        return bad


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=root, help=argparse.SUPPRESS)
    parser.add_argument("--build", default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    build = options.build or os.path.join(options.root, "build", "clang")
    if not os.path.exists(os.path.join(build, "compile_commands.json")):
        print(f"{build} has no compile_commands.json: cmake --preset clang && cmake --build build/clang "
              "--target sluice_proto_sources", file=sys.stderr)
        return 2
    try:
        lint = Lint(options.root, build)
    except FileNotFoundError as error:
        print(f"{error.filename} is missing; deploy/packages.txt lists its package", file=sys.stderr)
        return 2
    sources = lint.sources()
    if options.files:
        names = {os.path.relpath(os.path.realpath(f), lint.root) for f in options.files}
        for name in sorted(names - sources.keys()):
            if not os.path.exists(os.path.join(lint.root, name)):
                print(f"there is no {name}", file=sys.stderr)
                return 2
            print(f"{name}: not looked at, since {build} does not compile it")
        sources = {path: how for path, how in sources.items() if path in names}
    bad = lint.run(sources, options.jobs)
    lint.forget_old()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
