"""Tests retry_tests of deploy/common.sh on a build folder whose tests fail once, always or never."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
TESTS = {"good": "exit 0", "Group/Case.Flaky/0": "rm mark 2>/dev/null || { touch mark; exit 1; }", "bad": "exit 1"}


class RetryTest(unittest.TestCase):

    def run_tests(self, function, names):
        """(exit code, last lines) of a function of common.sh over the tests with these names."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "CTestTestfile.cmake"), "w") as file:
                for name in names:
                    file.write(f'add_test([=[{name}]=] sh -c [=[{TESTS[name]}]=])\n')
            done = subprocess.run(["bash", "-c", f'set -euo pipefail; source "$1/deploy/common.sh"; {function} "$2"',
                                   "bash", ROOT, folder], capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_a_test_that_passes_on_its_second_try_is_named(self):
        code, output = self.run_tests("retry_tests", ["good", "Group/Case.Flaky/0"])
        self.assertEqual(code, 0, output)
        self.assertIn("100% tests passed", output)
        self.assertEqual(output.splitlines()[-1],
                         "FLAKY: Group/Case.Flaky/0 failed at first and passed on its second try")

    def test_a_test_that_fails_twice_fails(self):
        code, output = self.run_tests("retry_tests", ["good", "bad"])
        self.assertNotEqual(code, 0)
        self.assertNotIn("FLAKY", output)

    def test_without_retries_one_failure_fails(self):
        code, output = self.run_tests("run_tests", ["good", "Group/Case.Flaky/0"])
        self.assertNotEqual(code, 0)
        self.assertNotIn("FLAKY", output)


if __name__ == "__main__":
    unittest.main()
