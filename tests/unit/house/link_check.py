"""Checks that a CMake target links those whose headers its files include, itself or through what they pass on.

    python3 link_check.py ROOT

Prints each include of a header that belongs to none of these, and each C++ file of a room that is in no target's list;
exits with 1 if there is any. Files of CMake are read as lists of commands, all of them, whatever an if() says.
"""

import collections
import os
import re
import sys

import include_check

GENERATED = re.compile(r"sluice/v1/\w+(\.grpc)?\.pb\.h$")  # by protoc
GENERATED_BY = "sluice_proto_gen"
ELSEWHERE = {
    # sluice_gpu links both, as wholes.
    "sluice_cuda_backend": "sluice_cuda_kernels",
}
COMMAND = re.compile(r"(\w+)\s*\(")
WORD = re.compile(r'"((?:\\.|[^"\\])*)"|([^\s()"]+)')
COMMENT = re.compile(r'#[^\n]*')


def commands(text):
    """(name, words) of each command of a CMake file."""
    text = COMMENT.sub("", text)
    position = 0
    while match := COMMAND.search(text, position):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        words = [quoted or bare for quoted, bare in WORD.findall(text[match.end():end - 1])]
        yield match[1], words
        position = end


class Targets:
    """files: {target: its files}; public, private: {target: those it links}; owners: {file: its targets}."""

    def __init__(self, root, paths):
        self.root, self.files = root, {}
        self.public, self.private = collections.defaultdict(set), collections.defaultdict(set)
        self.variables = collections.defaultdict(list)
        for path in sorted(p for p in paths if p.endswith(".cmake")):
            self.read(path)  # first, for they set the variables that others use
        for path in sorted(p for p in paths if p.split("/")[-1] == "CMakeLists.txt"):
            self.read(path)
        self.owners = collections.defaultdict(set)
        for target, files in self.files.items():
            for file in files:
                self.owners[file].add(target)

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            text = file.read()
        folder = os.path.dirname(path)
        for name, words in commands(text):
            if name in ("add_library", "add_executable"):
                self.files[words[0]] = set(self.paths(folder, words[1:]))
            elif name == "set":
                self.variables[words[0]] = self.paths(folder, words[1:])
            elif name == "target_link_libraries":
                links = self.public
                for word in words[1:]:
                    if word in ("PUBLIC", "INTERFACE", "PRIVATE"):
                        links = self.private if word == "PRIVATE" else self.public
                    else:
                        links[words[0]].update(re.findall(r"[\w:-]+", word.split("WHOLE_ARCHIVE,")[-1]))

    def paths(self, folder, words):
        """The code among them, from the root."""
        found = []
        for word in words:
            variable = re.fullmatch(r"\$\{(\w+)\}", word)
            if variable:
                found += self.variables.get(variable[1], [])
            if word.endswith(include_check.CODE):
                word = re.sub(r"^\$\{(CMAKE_CURRENT_LIST_DIR|CMAKE_CURRENT_SOURCE_DIR)\}/", "", word)
                if not word.startswith("$"):
                    found.append(os.path.normpath(os.path.join(folder, word)))
        return found

    def reached(self, target):
        """The target, what it links, and what these pass on."""
        seen, waiting = {target}, [*self.public[target], *self.private[target]]
        while waiting:
            link = waiting.pop()
            if link not in seen:
                seen.add(link)
                waiting += self.public[link]
        return seen


def check(root):
    """All violations in the tree, as strings."""
    paths = [p for p in include_check.tracked_files(root) if p.split("/")[0] in include_check.MAY_INCLUDE]
    targets, errors = Targets(root, paths), []
    for path in paths:
        if not path.endswith(include_check.CODE):
            continue
        if path not in targets.owners:
            errors.append(f"{path}:1: is in no target's list of files")
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            included = [(number, match[1]) for number, line in enumerate(file, 1)
                        if (match := include_check.INCLUDE.match(line))]
        for target in sorted(targets.owners.get(path, [])):
            reached = targets.reached(target) | {ELSEWHERE.get(target)}
            for number, name in included:
                owners = {GENERATED_BY} if GENERATED.match(name) else targets.owners.get(name, set())
                if owners and not owners & reached:
                    errors.append(f"{path}:{number}: {target} does not link {' or '.join(sorted(owners))}, "
                                  f"which {name} belongs to")
    return errors


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    errors = check(sys.argv[1])
    print("\n".join(errors) if errors else "All that is included is linked.")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
