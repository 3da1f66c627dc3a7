"""Tests which commit a build says that it is of, by common/build_commit.cmake."""

import os
import re
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SCRIPT = os.path.join(ROOT, "common", "build_commit.cmake")


def git(directory, *arguments):
    return subprocess.run(
        ["git", "-C", directory, "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        check=True, capture_output=True, text=True).stdout.strip()


class BuildCommitTest(unittest.TestCase):

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.source = os.path.join(self.directory.name, "source")
        os.mkdir(self.source)
        self.output = os.path.join(self.directory.name, "build_commit.cc")

    def tearDown(self):
        self.directory.cleanup()

    def said(self, script=SCRIPT):
        subprocess.run(["cmake", f"-DSOURCE_DIR={self.source}", f"-DOUTPUT={self.output}", "-P", script],
                       check=True, capture_output=True)
        with open(self.output) as f:
            return re.search(r'return "(.*)";', f.read())[1]

    def make_repository(self):
        git(self.source, "init", "-q")
        with open(os.path.join(self.source, "file"), "w") as f:
            f.write("a\n")
        git(self.source, "add", "file")
        git(self.source, "commit", "-q", "-m", "first")
        return git(self.source, "rev-parse", "HEAD")[:12]

    def test_without_git_it_is_unknown_and_the_file_is_not_written_twice(self):
        self.assertEqual(self.said(), "unknown")
        os.utime(self.output, (1, 1))
        self.assertEqual(self.said(), "unknown")
        self.assertEqual(os.stat(self.output).st_mtime, 1)

    def test_a_repository_that_cannot_be_read_is_unknown(self):
        with open(os.path.join(self.source, ".git"), "w") as f:
            f.write("gitdir: /nowhere\n")
        self.assertEqual(self.said(), "unknown")

    def test_the_commit_and_whether_files_differ_from_it(self):
        commit = self.make_repository()
        self.assertEqual(self.said(), commit)
        with open(os.path.join(self.source, "untracked"), "w") as f:
            f.write("b\n")
        self.assertEqual(self.said(), commit)
        with open(os.path.join(self.source, "file"), "w") as f:
            f.write("b\n")
        self.assertEqual(self.said(), commit + "-dirty")

    def test_an_archive_knows_its_commit(self):
        common = os.path.join(self.source, "common")
        os.mkdir(common)
        for name, to in ((SCRIPT, common), (os.path.join(ROOT, ".gitattributes"), self.source)):
            with open(name) as f, open(os.path.join(to, os.path.basename(name)), "w") as copy:
                copy.write(f.read())
        git(self.source, "init", "-q")
        git(self.source, "add", ".")
        commit = self.make_repository()
        tar = os.path.join(self.directory.name, "archive.tar")
        git(self.source, "archive", "-o", tar, "HEAD")
        unpacked = os.path.join(self.directory.name, "unpacked")
        os.mkdir(unpacked)
        subprocess.run(["tar", "xf", tar, "-C", unpacked], check=True)
        self.source = unpacked
        self.assertEqual(self.said(os.path.join(unpacked, "common", "build_commit.cmake")), commit)


if __name__ == "__main__":
    unittest.main()
