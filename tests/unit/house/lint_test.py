"""Tests format_check.py and deploy/lint.py on small trees, each with one thing wrong."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))

GUARDED = """#include "common/threads/mutex.h"

class Counter {
 public:
  int value() { %sreturn value_; }

 private:
  sluice::Mutex mu_;
  int value_ ABSL_GUARDED_BY(mu_) = 0;
};

int Read() { return Counter().value(); }
"""
LOCK = "sluice::MutexLock lock(&mu_);\n    "
MOVED = """#include <string>
#include <utility>

std::string Twice(std::string text) {
  std::string first = std::move(text);
  return first + %s;
}
"""


def long_function(lines):
    return "int Long(int x) {\n" + "  x = x * 3 + 1;\n" * (lines - 1) + "  return x;\n}\n"


class FormatCheckTest(unittest.TestCase):

    def check(self, content):
        """Returns what format_check.py prints of a tree with this file; its exit code says the same."""
        with tempfile.TemporaryDirectory() as root:
            shutil.copy(os.path.join(ROOT, ".clang-format"), root)
            with open(os.path.join(root, "a.cc"), "w") as file:
                file.write(content)
            done = subprocess.run([sys.executable, os.path.join(HERE, "format_check.py"), root],
                                  capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 0 if done.stdout == "All files are formatted.\n" else 1)
        return done.stdout

    def test_good_files_pass(self):
        self.assertEqual(self.check('#include "a.h"\n\n#include <map>\n\nint x;\n'), "All files are formatted.\n")

    def test_a_file_with_another_form_is_named(self):
        self.assertIn("a.cc:1:4: error: code should be clang-formatted", self.check("int  x ;\n"))

    def test_includes_in_another_order_are_named(self):
        self.assertIn("a.cc:1:", self.check("#include <vector>\n#include <map>\n"))


class LintTest(unittest.TestCase):

    def setUp(self):
        self.cache = tempfile.TemporaryDirectory()
        self.make_checkout()

    def make_checkout(self):
        self.directory = tempfile.TemporaryDirectory()
        self.root = self.directory.name
        shutil.copy(os.path.join(ROOT, ".clang-tidy"), self.root)
        os.makedirs(os.path.join(self.root, "common", "threads"))
        shutil.copy(os.path.join(ROOT, "common", "threads", "mutex.h"), os.path.join(self.root, "common", "threads"))

    def tearDown(self):
        self.directory.cleanup()
        self.cache.cleanup()

    def lint(self, files, *arguments):
        """(exit code, output) of lint.py on a tree with these sources, as CMake would compile them."""
        environment = {**os.environ, "XDG_CACHE_HOME": self.cache.name}
        build = os.path.join(self.root, "build")
        os.makedirs(build, exist_ok=True)
        commands = []
        for path, content in files.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w") as file:
                file.write(content)
            commands.append({"directory": build, "file": full,
                             "command": f"/usr/bin/ccache /usr/bin/c++ -I{self.root} -Wall -Wno-restrict -std=c++20 "
                                        f"-o {path}.o -c {full}"})
        with open(os.path.join(build, "compile_commands.json"), "w") as file:
            json.dump(commands, file)
        done = subprocess.run([os.path.join(ROOT, "deploy", "lint.py"), "--root", self.root, "--build", build,
                               *arguments], capture_output=True, text=True, env=environment)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def test_good_sources_pass_and_are_not_looked_at_again_before_they_change(self):
        files = {"runtime/a.cc": GUARDED % LOCK, "tests/a_test.cc": GUARDED % LOCK, "runtime/b.cc": MOVED % "first",
                 "runtime/c.cc": long_function(99)}
        code, output = self.lint(files)
        self.assertEqual(code, 0, output)
        self.assertIn("4 sources, 0 of them as they were, 0 with findings", output)
        self.assertIn("4 sources, 4 of them as they were, 0 with findings", self.lint(files)[1])
        with open(os.path.join(self.root, "common", "threads", "mutex.h"), "a") as file:
            file.write("// More.\n")
        self.assertIn("4 sources, 2 of them as they were, 0 with findings", self.lint(files)[1])

    def test_another_checkout_knows_what_passed_until_it_was_not_asked_for_in_a_long_time(self):
        files = {"runtime/a.cc": GUARDED % LOCK, "runtime/b.cc": "int x;\n"}
        self.lint(files)
        self.directory.cleanup()
        self.make_checkout()
        self.assertIn("2 sources, 2 of them as they were", self.lint(files)[1])
        folder = os.path.join(self.cache.name, "sluice", "lint")
        for name in os.listdir(folder):
            os.utime(os.path.join(folder, name), (0, 0))
        self.assertIn("1 sources, 1 of them as they were", self.lint({"runtime/b.cc": "int x;\n"})[1])
        self.assertEqual(len(os.listdir(folder)), 1)

    def test_what_is_read_without_its_lock_is_named_in_sources_and_tests(self):
        code, output = self.lint({"runtime/a.cc": GUARDED % "", "tests/a_test.cc": GUARDED % ""})
        self.assertEqual(code, 1)
        for path in ("runtime/a.cc", "tests/a_test.cc"):
            self.assertRegex(output, f"{path}:5:24: error: reading variable 'value_' requires holding mutex 'mu_'")

    def test_what_tidy_finds_is_named_and_found_again(self):
        files = {"runtime/a.cc": MOVED % "text", "runtime/b.cc": long_function(101)}
        for _ in range(2):
            code, output = self.lint(files)
            self.assertEqual(code, 1)
            self.assertIn("a.cc:6:18: error: 'text' used after it was moved", output)
            self.assertIn("b.cc:1:5: error: function 'Long' exceeds recommended size", output)
            self.assertIn("2 sources, 0 of them as they were, 2 with findings", output)

    def test_only_the_files_that_are_named_are_looked_at(self):
        files = {"runtime/a.cc": MOVED % "text", "runtime/b.cc": "int x;\n"}
        code, output = self.lint(files, os.path.join(self.root, "runtime", "b.cc"))
        self.assertEqual(code, 0, output)
        self.assertIn("1 sources, 0 of them as they were, 0 with findings", output)

    def test_a_named_file_that_cannot_be_looked_at_is_told(self):
        files = {"runtime/b.cc": "int x;\n"}
        self.lint(files)
        with open(os.path.join(self.root, "runtime", "c.cc"), "w") as file:
            file.write("int y;\n")
        code, output = self.lint(files, os.path.join(self.root, "runtime", "c.cc"))
        self.assertEqual(code, 0, output)
        self.assertIn("runtime/c.cc: not looked at", output)
        done = subprocess.run([os.path.join(ROOT, "deploy", "lint.py"), "--root", self.root, "--build",
                               os.path.join(self.root, "build"), os.path.join(self.root, "none.cc")],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no none.cc", done.stderr)

    def test_a_source_that_does_not_compile_is_named(self):
        code, output = self.lint({"runtime/a.cc": "int x\n", "tests/a_test.cc": "int x  // Mutex\n"})
        self.assertEqual(code, 1)
        for path in ("runtime/a.cc", "tests/a_test.cc"):
            self.assertRegex(output, f"{path}:1:6: error: expected ';'")

    def test_tests_without_locks_are_left_to_the_compiler(self):
        code, output = self.lint({"tests/a_test.cc": "int x\n"})
        self.assertEqual(code, 0, output)
        self.assertIn("0 sources, 0 of them as they were, 0 with findings", output)

    def test_without_a_build_there_is_nothing_to_look_at(self):
        done = subprocess.run([os.path.join(ROOT, "deploy", "lint.py"), "--build", self.root],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("compile_commands.json", done.stderr)


if __name__ == "__main__":
    unittest.main()
