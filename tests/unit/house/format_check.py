"""Checks that the tree's C++ is as clang-format 14 writes it, the order of includes too.

    python3 format_check.py ROOT

Prints each place that is not, and exits with 1 if there is any. `clang-format -i FILE` mends it.
"""

import subprocess
import sys

import include_check


def check(root):
    """Returns what clang-format says, a line for each place; nothing of a tree in order."""
    files = [path for path in include_check.tracked_files(root) if path.endswith(include_check.CODE)]
    return [line for start in range(0, len(files), 200)
            for line in subprocess.run(["clang-format", "--dry-run", "-Werror", *files[start:start + 200]], cwd=root,
                                       stderr=subprocess.PIPE, text=True).stderr.splitlines() if ": error: " in line]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    errors = check(sys.argv[1])
    print("\n".join(errors) if errors else "All files are formatted.")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
