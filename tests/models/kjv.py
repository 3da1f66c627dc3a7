"""The King James Version as chapters, and the split that every figure here refers to.

The text is in the public domain. It is not committed: Debian's `bible-kjv` package
prints it, and version 4.38 of that package is what the committed models were trained on
(`TEXT_SHA256` says so exactly).

A chapter is one document:

    Genesis 1
    1 In the beginning God created the heaven and the earth.
    2 And the earth was without form, and void; ...

with "\n" after every line, the last included. Chapters are counted from 0 in the order
in which `bible` prints them, over the whole Bible (1189 of them). Chapter c is held out
when c % 20 == 19, which holds out 59 of them; the others are the training split.
"""

import dataclasses
import hashlib
import re
import subprocess

# `bible` abbreviates; a model trained on "1Sm" would not learn to write "1 Samuel".
BOOKS = {
    "Ge": "Genesis", "Exo": "Exodus", "Lev": "Leviticus", "Num": "Numbers",
    "Deu": "Deuteronomy", "Josh": "Joshua", "Jdgs": "Judges", "Ruth": "Ruth",
    "1Sm": "1 Samuel", "2Sm": "2 Samuel", "1Ki": "1 Kings", "2Ki": "2 Kings",
    "1Chr": "1 Chronicles", "2Chr": "2 Chronicles", "Ezra": "Ezra", "Neh": "Nehemiah",
    "Est": "Esther", "Job": "Job", "Psa": "Psalms", "Prv": "Proverbs",
    "Eccl": "Ecclesiastes", "SSol": "Song of Solomon", "Isa": "Isaiah", "Jer": "Jeremiah",
    "Lam": "Lamentations", "Eze": "Ezekiel", "Dan": "Daniel", "Hos": "Hosea",
    "Joel": "Joel", "Amos": "Amos", "Obad": "Obadiah", "Jonah": "Jonah", "Mic": "Micah",
    "Nahum": "Nahum", "Hab": "Habakkuk", "Zep": "Zephaniah", "Hag": "Haggai",
    "Zec": "Zechariah", "Mal": "Malachi", "Mat": "Matthew", "Mark": "Mark",
    "Luke": "Luke", "John": "John", "Acts": "Acts", "Rom": "Romans",
    "1Cor": "1 Corinthians", "2Cor": "2 Corinthians", "Gal": "Galatians",
    "Eph": "Ephesians", "Phi": "Philippians", "Col": "Colossians",
    "1Th": "1 Thessalonians", "2Th": "2 Thessalonians", "1Tim": "1 Timothy",
    "2Tim": "2 Timothy", "Titus": "Titus", "Phmn": "Philemon", "Heb": "Hebrews",
    "Jas": "James", "1Pet": "1 Peter", "2Pet": "2 Peter", "1Jn": "1 John",
    "2Jn": "2 John", "3Jn": "3 John", "Jude": "Jude", "Rev": "Revelation",
}

# sha256 of the exact bytes that `bible -f gen1:1-rev22:21` prints.
TEXT_SHA256 = "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"

HELD_OUT_EVERY = 20
HELD_OUT_REMAINDER = 19


@dataclasses.dataclass(frozen=True)
class Chapter:
    index: int  # from 0 over the whole Bible
    title: str  # "Genesis 1"
    verses: tuple[str, ...]

    @property
    def text(self) -> str:
        numbered = [f"{n} {verse}\n" for n, verse in enumerate(self.verses, 1)]
        return f"{self.title}\n" + "".join(numbered)

    @property
    def held_out(self) -> bool:
        return self.index % HELD_OUT_EVERY == HELD_OUT_REMAINDER


def load_chapters() -> list[Chapter]:
    """All 1189 chapters in order. Raises if the installed text is not the pinned one."""
    raw = subprocess.run(
        ["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True
    ).stdout
    digest = hashlib.sha256(raw).hexdigest()
    if digest != TEXT_SHA256:
        raise RuntimeError(f"bible-kjv printed another text: sha256 {digest}")

    verses: dict[str, list[str]] = {}
    for line in raw.decode("ascii").splitlines():
        match = re.fullmatch(r"(\d?[A-Za-z]+?)(\d+):(\d+) (.*\S)\s*", line)
        if match is None:
            raise RuntimeError(f"not a verse: {line!r}")
        book, chapter, number, text = match.groups()
        chapter_verses = verses.setdefault(f"{BOOKS[book]} {chapter}", [])
        chapter_verses.append(text)
        if len(chapter_verses) != int(number):
            raise RuntimeError(f"verse out of order: {line!r}")
    return [Chapter(i, t, tuple(v)) for i, (t, v) in enumerate(verses.items())]


def split(chapters: list[Chapter]) -> tuple[list[Chapter], list[Chapter]]:
    """(training, held out)."""
    return (
        [c for c in chapters if not c.held_out],
        [c for c in chapters if c.held_out],
    )
