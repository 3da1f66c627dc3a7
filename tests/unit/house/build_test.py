"""Tests build and install_packages of deploy/common.sh, with a cmake and a dpkg-query that only write down what they are told."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
CMAKE = """#!/bin/sh
echo "$@" >>"$LOG"
case "$*" in --preset*)
  mkdir -p build/release && touch build/release/build.ninja
  echo "$@" | sed -n 's/.*-DBUILD_TESTING=\\([A-Z]*\\).*/BUILD_TESTING:BOOL=\\1/p' >build/release/CMakeCache.txt
esac
"""


class BuildTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.log = folder.name, os.path.join(folder.name, "log")
        os.mkdir(os.path.join(self.folder, "deploy"))
        os.mkdir(os.path.join(self.folder, "path"))
        for name in ("common.sh", "packages.txt"):
            shutil.copy(os.path.join(ROOT, "deploy", name), os.path.join(self.folder, "deploy"))
        self.program("cmake", CMAKE)

    def program(self, name, text):
        path = os.path.join(self.folder, "path", name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def call(self, script):
        """Returns what cmake was told, a line for each call, and all that was printed."""
        open(self.log, "w").close()
        done = subprocess.run(["bash", "-c", f"source deploy/common.sh; {script}"], capture_output=True, text=True,
                              cwd=self.folder, env={**os.environ, "LOG": self.log,
                                                    "PATH": f"{self.folder}/path:{os.environ['PATH']}"})
        with open(self.log) as file:
            return file.read().splitlines(), done.stdout + done.stderr

    def test_tests_are_configured_unless_they_are_not_wanted(self):
        told, _ = self.call("with_tests=OFF; build release sluice")
        self.assertIn("-DBUILD_TESTING=OFF", told[0])
        self.assertRegex(told[1], r"^--build build/release -j \d+ --target sluice$")
        self.assertEqual(len(self.call("with_tests=OFF; build release sluice")[0]), 1, "configured twice")
        # Who wants them gets them, also in a folder that has none.
        self.assertIn("-DBUILD_TESTING=ON", self.call("build release")[0][0])
        self.assertEqual(len(self.call("build release")[0]), 1, "configured twice")
        # A folder that has them keeps them.
        self.assertEqual(len(self.call("with_tests=OFF; build release sluice")[0]), 1, "configured twice")

    def test_building_needs_fewer_packages_than_testing(self):
        self.program("dpkg-query", "#!/bin/sh\nexit 1\n")  # none is there
        self.program("id", "#!/bin/sh\necho 1000\n")
        building, testing = (self.call(f"install_packages {what}")[1].split("recommends ")[1].split() for what in ("build", ""))
        self.assertIn("libgrpc++-dev", building)
        self.assertNotIn("libgtest-dev", building)
        self.assertEqual(testing[:len(building)], building)
        self.assertIn("libgtest-dev", testing)


if __name__ == "__main__":
    unittest.main()
