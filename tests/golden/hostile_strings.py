"""Strings that break tokenizers: the inputs of tokenizers/*/golden.jsonl.

Everything is deterministic: the same list on every run.
"""

import functools
import random
import unicodedata

import regex

SEED = 7

# A tokenizer meets such text in practice. The tokenizers are trained on it, too, so that their
# vocabularies hold more than ASCII.
EVERYDAY = [
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they'll say we've done what he'd asked; it isn't John's, it's ours.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë.",
    "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío, ¿añoraba?",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Τάχιστη αλώπηξ.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İIıi",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ。コンピュータ",
    "다람쥐 헌 쳇바퀴에 타고파. 안녕하세요 세계",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "আমি বাংলায় গান গাই। தமிழ் மொழி. ქართული ენა. Հայերեն լեզու. አማርኛ",
    "Tiếng Việt: một hai ba bốn năm sáu bảy tám chín mười.",
    "emoji 😀 😂 👍🏽 👩‍👩‍👧‍👦 🇫🇷🇩🇪 ❤️ ☃️ 1️⃣ 🏳️‍🌈 🧑🏿‍🚀",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];  // dot product\n}\n",
    "def f(x, *args, **kwargs):\n    return {k: v for k, v in kwargs.items() if v != x}\n",
    "#include <vector>\nstd::vector<std::string> v{\"a\", R\"(raw)\"};\n",
    "SELECT name, COUNT(*) FROM t WHERE id IN (1, 22, 333) GROUP BY name;",
    '{"key": [1, 2.5e-10, true, null], "nested": {"a\\n": "\\u00e9"}}',
    "https://user:pw@example.com:8080/path/to?x=1&y=%20%C3%A9#frag",
    "mail@example.org, +44 (0)20 7946 0958, 2026-03-14T15:09:26Z, $1,234,567.89, 50%",
    "<html><body class=\"x\">&nbsp;&lt;p&gt;</body></html>",
    "x² + y₃ ≤ ½·∑ᵢ √π ≠ ∞ → ℝ ⊂ ℂ, 5 µm, 20 °C, №7, ™ © ® § ¶",
    "C:\\Windows\\System32 ~/.bashrc ../a/./b $HOME `ls -la` && echo \"$?\" | tee /dev/null",
    "CamelCaseWords snake_case_words kebab-case SCREAMING_SNAKE mixedUPPERlower iPhone15Pro",
]

MARKS = [
    # The same text composed and decomposed, and marks out of canonical order.
    "café", "cafe\u0301", "Å\u0041\u030a\u212b", "\u1e9b\u0323", "\u017f\u0323\u0307",
    "q\u0307\u0323", "q\u0323\u0307", "\u0344", "\u0385", "\u1fee", "\u2126 \u212a",
    "\u0958\u0959", "\u0915\u093c", "\ufb1d\ufb2a", "\uac00\u11a8", "\u1100\u1161\u11a8",
    "한글", unicodedata.normalize("NFD", "한글 다람쥐"), "\u0061\u0315\u0300\u05ae\u0062",
    "Z\u0351\u036b\u0343\u036a\u0302a\u0334\u0300\u0310l\u0489g\u031a\u0336o\u0321\u0338",
    "\u0301start", " \u0301", "a\u0308\u0304", "ạ̈", "\u0cca\u0ccb", "\u0dda\u0ddd",
    "\u2adc", "\U0001d15e\U0001d1bb", "\uf900\ufa10\ufa30", "\U0002f800\U0002fa1d",
    "ﬀﬁﬂﬃﬄﬅﬆ", "㎏㍿①Ⅷ⅔", "ｆｕｌｌｗｉｄｔｈ１２３", "ǆǅǄ ŉ ß ẞ İ ı",
    "e\u0301" * 40, "\u0301" * 50, "o\u0302\u0301\u0302\u0301",
]

EMOJI = [
    "😀", "😀😀😀", "👍", "👍🏻👍🏼👍🏽👍🏾👍🏿", "👨‍👩‍👧‍👦", "👩‍❤️‍💋‍👨", "🧑🏽‍🤝‍🧑🏿",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "🏴‍☠️", "🏳️‍⚧️",
    "🇺🇸🇬🇧🇯🇵🇰🇷", "🇺", "🇺🇸🇬", "1️⃣2️⃣#️⃣*️⃣", "❤", "❤️", "❤︎", "☺️☺︎", "🤷🏽‍♀️", "🐈‍⬛",
    "\u200d", "\ufe0f", "\U0001f3fb", "a\u200db", "👨\u200d", "\u200d👨", "text😀text", " 😀 ",
    "😀 😀", "😀\n😀", "\U0001fae8\U0001fa77", "🫠🫡", "👁️‍🗨️", "😶‍🌫️", "❤️‍🔥", "🙂" * 30,
]

SCRIPTS = [
    "漢字", "漢字かな交じり文", "「引用」、。！？", "你好，世界！", "你好 世界", "한국어 텍스트",
    "𠀀𠮷𡃁", "龍龘𪚥", "ｶﾀｶﾅ ﾊﾝｶｸ", "ㄅㄆㄇ", "مرحبا بالعالم", "السَّلَامُ عَلَيْكُمْ",
    "\u202bمرحبا\u202c", "\u200fעברית\u200e", "שָׁלוֹם", "\u05e9\u05c1\u05b8", "नमस्ते दुनिया",
    "क्षत्रिय", "क्\u200dष", "क्\u200cष", "ทดสอบภาษาไทย", "ກຂຄ", "မြန်မာ", "ខ្មែរ", "བོད་ཡིག",
    "ᐃᓄᒃᑎᑐᑦ", "ᚠᛇᚻ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚", "𐎀𐎁", "𒀀𒀁", "𓀀𓁐", "\U00010400\U00010428",
    "١٢٣ ۴۵۶ १२३ ๑๒๓ 一二三 Ⅳ ½ ² ₃", "১২৩৪৫৬৭", "٪ ٫ ٬", "“smart” ‘quotes’ — dash – … ‽",
    "¡Hola! ¿Qué?", "Привет, мир", "ΑΒΓ αβγ ς", "Ǆ ǅ ǆ", "עברית English עברית",
]

CONTRACTIONS = [
    "'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'VE", "'m", "'M", "'ll", "'LL",
    "'lL", "'d", "'D", "it's IT'S It'S", "they'll THEY'LL", "we've WE'VE we'Ve", "I'm I'M",
    "don't DON'T", "you'd YOU'D", "we're WE'RE", "’s it’s IT’S", "it‘s", "it`s", "''s",
    "'sx", "'tx 'rex", "'s's's", "'", "''", "'''", "' s", " 's", "x 's", "'\u017f",
    "it'\u017f", "'\u212a", "o'clock", "rock'n'roll", "'twas", "y'all'd've", "'l", "'r", "'v",
    "'lls", "5's", "'5", "'S'T'RE", "\n's", "s'", "'ᵴ", "a'd'b'm",
]

SPACES = [
    "", " ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r", "\r\n", "\r\n\r\n",
    "\v", "\f", " \n", "\n ", " \n ", "  \n  \n  ", "\t\n\t", " \t ", "a ", " a", "  a", "a  ",
    "a  b", "a   b", "a    b", "a\tb", "a\t\tb", "a \tb", "a\t b", "a\nb", "a\n\nb", "a \n b",
    "a\n b", "a \nb", "a  \n  b", "a\r\nb", "a\r\n\r\nb", "a\rb", "a\n\r\nb", "a\vb", "a\fb",
    "a\u0085b", "\u0085", "a\u00a0b", "\u00a0\u00a0", "a\u1680b", "a\u180eb", "a\u2000b",
    "a\u2003\u2003b", "a\u2009b", "a\u200ab", "a\u200bb", "\u200b", "a\u2028b", "\u2028\u2029",
    "a\u2029b", "a\u202fb", "a\u205fb", "a\u2060b", "a\u3000b", "\u3000\u3000", "a\ufeffb",
    " \u00a0 ", "\u00a0a", " \u2003a", "\u3000漢字", "a\x1cb", "a\x1d\x1e\x1fb", "\x1f\x1f",
    "  leading", "trailing  ", "\tleading tab", "line one\n    indented\n\tline two\n",
    "end.\n", "end.\n\n", "end. \n", "!\n\n\n!", "! \n", "?\r\n?", "...\n\n...", ")\n}\n]",
    "1\n2\n3", "1 2  3   4", " 1", "  1", "\n1", "a \u200b b", " ▁ ", "▁", "▁▁", "▁a▁b", "a▁ b",
    " ▁a", "Ġ", "ĠaĠb", "Ċ", "<0x0A>", "<0x41>b", "\\n", "%20", "\x00 ", " \x00",
]

CONTROLS = (
    [chr(c) for c in range(0x20)] + ["\x7f"] + [chr(c) for c in range(0x80, 0xa0, 5)]
    + ["\x00\x00\x00", "a\x00b", "\x00a", "a\x00", "\x01\x02\x03", "a\x07b\x1b[31mred\x1b[0m",
       "\x7f\x7f", "a\x7fb", "\x80\x81", "\u200e\u200f", "\u202a\u202e", "\u2066\u2069",
       "\u00ad", "soft\u00adhyphen", "\u061c", "\ufff9a\ufffab\ufffb", "\U000e0001\U000e0041"]
)

CODE_POINTS = [
    # Edges of the planes and of UTF-8's lengths, non-characters, private use, BOM.
    "\u007f\u0080", "\u07ff\u0800", "\ud7ff\ue000", "\ud7ff", "\ue000", "\uf8ff", "\ufdcf\ufdd0",
    "\ufdd0\ufdef\ufdf0", "\ufffd", "\ufffd\ufffd", "\ufffe", "\uffff", "\uffff\U00010000",
    "\U00010000", "\U0001fffe\U0001ffff", "\U0002fffe", "\U000effff\U000f0000", "\U000ffffd",
    "\U00100000", "\U0010fffd", "\U0010fffe", "\U0010ffff", "\ufeff", "\ufeffBOM", "x\ufeff",
    "\ufeff\ufeff", "a\U0010ffffb", "\u2ffe\u2fff\u3000", "\ufe00\ufe0e\ufe0f\U000e0100",
    "\U0001d400\U0001d7ff", "\U000e0020\U000e007f", "\ud7fb\ud7fc", "\uff01\uffee", "\u0378",
]

PUNCTUATION = [
    "!", "!!", "!!!", "?!", "...", "....", "…", "--", "---", "—", "***", "###", "===", "~~~",
    "@@", "$$", "%%", "^^", "&&", "||", "<>", "<<>>", "{}", "{{}}", "[[]]", "()", "(())", "\"\"",
    "\"a\"", "(a)", "[a]", "{a}", "<a>", "a.b", "a,b", "a;b", "a:b", "a/b", "a\\b", "a_b", "__a__",
    "a-b", "a+b=c", "!a", " !a", "! a", "a!", "a !", ".a", "..a", "#a", "@a", "$a", "$1", "1$",
    "a.b.c.d", "\\\\", "\\\"", "//", "/* */", "<!-- -->", "->", "=>", "::", ";;", ",,,", "_ _",
    "1,2,3", "1.2.3", "1-2-3", "3.14159", "1e10", "0x1F", "1/2", "50%", "-1", "+1", "1st", "2nd",
    "a1", "1a", "a1b2", "abc123def", "1 a", "v1.2.3-rc4+build.5", "1234567890", "12345678901",
    "0", "00", "000", "0000", "1", "12", "123", "1234", "12345", "123456", "1234567",
]

LETTERS = [
    "a", "A", "aa", "AA", "aA", "Aa", "abc", "ABC", "aBc", "AbC", "helloWorld", "HELLOworld",
    "hello", "Hello", "HELLO", " hello", " Hello", "hello world", "Hello World", "hello  world",
    "antidisestablishmentarianism", "supercalifragilisticexpialidocious", "zzzzzzzz", "qqqq",
    "the", " the", "The", " The", "THE", "thethe", "the the the", "in the beginning",
    "In the beginning God created the heaven and the earth.", "unto the LORD thy God",
    "And God said, Let there be light: and there was light.", "xn--caf-dma", "ªº", "ʰʷ", "ⅷⅧ", "ⓐⓩ",
    "unmergeable", " unmergeable", "an unmergeable word", "xylographic xylographic",
]

LONG = [
    " " * 700, "\n" * 600, "\t" * 300, "a" * 1500, "ab" * 400, "7" * 1000, "." * 1200, "-" * 500,
    "=" * 100 + "\n" + "=" * 100, "!?" * 150, "é" * 250, "漢" * 200, "😀" * 120, "\x00" * 200,
    " a" * 300, "a " * 300, "\r\n" * 200, " \n" * 200, "\u3000" * 100, "'s" * 200, "1 " * 250,
    "the " * 250, "word" * 200, "x" * 255, "x" * 256, "x" * 257, "\u00a0" * 150, "()" * 200,
    "Abc" * 150, "▁" * 150, "\ufffd" * 80, " " * 17 + "x", "x" + " " * 33 + "y", "\n" * 31 + "x",
    "And the LORD spake unto Moses, saying, " * 20,
]

# These are combined with every added token of the tokenizer at hand.
TOKEN_FRAMES = [
    "{}", "{}{}", "{} {}", " {}", "{} ", " {} ", "  {}  ", "a{}", "{}a", "a{}b", "a {} b",
    "a  {}  b", "\n{}\n", "\t{}\t", "1{}2", "_{}_", "é{}é", "漢{}字", ".{}.", "😀{}😀", "\u00a0{}\u00a0",
    "-{}-", "x\r\n {} \r\ny",
]


@functools.cache
def stable_code_points():
    """Code points whose class is the same in Unicode 14 and in the newest tables.

    Both sides of the comparison carry their own Unicode tables (Python 3.11's are 14.0,
    as PCRE2 10.42's are). A letter that was assigned in between is a letter to one and
    unassigned to the other: a fact about the libraries' age, not a bug to be found.
    """
    classes = {c: regex.compile(rf"\p{{{c}}}") for c in "LMNPSZ"}
    result = []
    for code_point in range(0x110000):
        if 0xD800 <= code_point < 0xE000:
            continue  # surrogates cannot stand in a string
        char = chr(code_point)
        major = unicodedata.category(char)[0]
        if major == "C":
            if not any(c.match(char) for c in classes.values()):
                result.append(code_point)
        elif classes[major].match(char):
            result.append(code_point)
    return result


def _random_strings(rng):
    stable = stable_code_points()
    assigned = [c for c in stable if unicodedata.category(chr(c)) not in ("Cn", "Co")]
    basic = [c for c in assigned if c < 0x3000]
    spaces = [c for c in assigned if chr(c).isspace()]
    marks = [c for c in assigned if unicodedata.category(chr(c))[0] == "M"]
    numbers = [c for c in assigned if unicodedata.category(chr(c))[0] == "N"]
    ascii_soup = "abcdefgst'  \n\t\r0123456789.,!?-_<>|[]{}()AZSTD\u2019é"
    pools = [stable, assigned, basic]

    result = []
    for _ in range(110):
        pool = rng.choice(pools)
        result.append("".join(chr(rng.choice(pool)) for _ in range(rng.randint(1, 10))))
    for _ in range(60):  # ASCII with anything in between
        result.append("".join(
            chr(rng.choice(assigned)) if rng.random() < 0.2 else rng.choice(ascii_soup)
            for _ in range(rng.randint(2, 24))))
    for _ in range(50):
        result.append("".join(rng.choice(ascii_soup) for _ in range(rng.randint(2, 40))))
    for _ in range(30):  # spaces, digits and marks of every script
        pool = spaces + rng.sample(marks, 10) + rng.sample(numbers, 10) + [0x61, 0x27, 0x2E]
        result.append("".join(chr(rng.choice(pool)) for _ in range(rng.randint(2, 12))))
    for _ in range(20):  # clipped and glued pieces of everyday text
        a, b = rng.sample(EVERYDAY, 2)
        i, j = rng.randrange(len(a)), rng.randrange(len(b))
        result.append(a[i:i + 25] + b[j:j + 25])
    return result


def _token_strings(tokens, rng):
    result = []
    for token in tokens:
        frames = TOKEN_FRAMES if len(tokens) <= 6 else rng.sample(TOKEN_FRAMES, 12)
        result += [f.format(*[token] * f.count("{}")) for f in frames]
        # These are broken or disguised, and must not match (or only where case and form allow it).
        cut = rng.randint(1, max(1, len(token) - 1))
        result += [token[:-1], token[1:], token[:cut] + " " + token[cut:], token.upper(),
                   token.swapcase(), token[:cut] + token + token[cut:],
                   unicodedata.normalize("NFD", token), token * 5]
    for _ in range(30):
        parts = [rng.choice(tokens + ["a", " ", "\n", " b ", "word", "é", "  "])
                 for _ in range(rng.randint(2, 8))]
        result.append("".join(parts))
    return result


def hostile_strings(added_tokens):
    """All strings for a tokenizer with these added tokens, each once, in a fixed order."""
    rng = random.Random(SEED)
    strings = (SPACES + LETTERS + EVERYDAY + CONTRACTIONS + PUNCTUATION + MARKS + EMOJI
               + SCRIPTS + CONTROLS + CODE_POINTS + _random_strings(rng)
               + _token_strings(list(added_tokens), rng) + LONG)
    return list(dict.fromkeys(strings))
