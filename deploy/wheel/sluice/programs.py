"""The three programs, by the names under which pip installs them. Each becomes the program itself: same process, same
signals, same exit code."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def path(name):
    """Returns where the program `name` is."""
    return os.path.join(HERE, "bin", name)


def _become(name, *args):
    os.execv(path(name), [name, *args])


def sluice():
    _become("sluice", *sys.argv[1:])


def sluice_coordinator():
    _become("sluice-coordinator", *sys.argv[1:])


def sluice_worker():
    _become("sluice-worker", *sys.argv[1:])
