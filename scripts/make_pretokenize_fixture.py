#!/usr/bin/env python3
"""Writes tests/text/fixtures/pretokenize.json: seeded random strings cut by Hugging Face tokenizers.

The expressions are those that the models publish (or, where a name is llama.cpp's own, its list). The
fixture is this oracle's word, never ridge's. Needs the Python package tokenizers.

    scripts/make_pretokenize_fixture.py [ROWS] > tests/text/fixtures/pretokenize.json
"""
import json
import random
import sys

from tokenizers import Regex, pre_tokenizers

SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CJK = r"[\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+"
STOPS = " ?[^(\\s|.,!?…。，、।۔،)]+"


def words(digits, lead=ENGLISH + "|"):
    return lead + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACE


def cased(suffix, digits, tail="/", without=""):
    lead, upper, lower = r"[^\r\n\p{L}\p{N}]?", UPPER[:-1] + without + "]", LOWER[:-1] + without + "]"
    return (f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|" + r"\p{N}" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n" + tail + "]*|" + SPACE)


HAN_APART = "&&[^\\p{Han}]"
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"| ?[\p{P}\p{S}]+")
HAN_KANA = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+"
YOUTU = (r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}"
         r"\x{ff1b}\x{ff0c}\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|" + HAN_KANA)
AFMOE = (r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}"
         r"\x{e40}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}"
         r"\x{1100}-\x{11ff}]+")
BLANKS = "".join(r"|\s{%d}(?!\S)" % (1 << k) for k in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"

EXPRESSIONS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "llama-bpe": [words("{1,3}")],
    "qwen2": [words("")],
    "qwen35": [ENGLISH + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACE],
    "seed-coder": [ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACE],
    "ufakzeka": [words("", "")],
    "minicpm5": [r"\p{N}{1,3}", words("+")],
    "gpt-4o": [cased(ENGLISH + "?", "{1,3}")],
    "tekken": [cased("", "")],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3 + r"[\r\n]*|" + SPACE],
    "laguna": [r"[^\n]+|[\n]+", words("")],
    "jais-2": [words("{1,3}").removesuffix(r"|\s+(?!\S)|\s+") + BLANKS],
    "exaone-moe": [ENGLISH + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|"
                   r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "kimi-k2": [r"[\p{Han}]+|" + cased(ENGLISH + "?", "{1,3}", "", HAN_APART)],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", cased(ENGLISH + "?", "{1,3}")],
    "youtu": [YOUTU, cased(ENGLISH + "?", "")],
    "spark2_5": [r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3 + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"],
    "afmoe": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", AFMOE, DEEPSEEK3 + r"[\r\n]*|" + SPACE],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "bloom": [STOPS],
    "viking": [STOPS, r"\p{N}"],
}
POOLS = ["'", "sStTrReEvVmMlLdDſ", " ", " \t\n\r\v\f\x85\xa0\u2003\u3000\u2028", "\r\n", "0123456789",
         "abcXYZéÉßĲǅʰªºµ", "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~¡§«€£©", "中文字かなカナ한글㐀", "٠١٢½²Ⅷ③๑",
         "\u0301\u0300\u0327\u0903\u20dd\u0e31", "😀👨🏽\ufe0f\u200d", "\x01\x1f\x7f\u200b\ufeff\u00ad", "αβΓДжבגاب",
         "。，、।۔،…！？‘’　（）", "⺀⼈々〇〡𠀀豈ꀀ", "ㄅㄆㄱㅎ가힣ᄀ", "ไทยລາວမြန်មែខ្", "_‿０１߀"]
SNIPPETS = ["'s", "'LL", "'Re", "'ſ", " 'd", "don't", "12345", "<sentinel:12>", "<sentinel:>", "IMGIMGABIZ", "IMGIMGAJZ",
            "1234567890", "٠١٢٣٤a", "a 123456", "\n\n\n", "//\n/", "a b  c d"]


def random_text(rng):
    length, text = rng.choice([3, 8, 20, 40]), ""
    pools = rng.sample(POOLS, rng.choice([2, 3, 5, len(POOLS)]))
    while len(text) < length:
        text += "".join(rng.choice(rng.choice(pools)) for _ in range(rng.choice([1, 1, 2, 3, 5])))
        if rng.random() < 0.1:
            text += rng.choice(SNIPPETS)
        if rng.random() < 0.03:
            text += rng.choice(" \t1") * rng.choice([2, 4, 5, 9, 31, 130])
    return text


def main():
    rng = random.Random(20)
    cutters = {name: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in expressions])
               for name, expressions in EXPRESSIONS.items()}
    rows = []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 150):
        text = random_text(rng)
        lengths = {name: [len(piece.encode()) for piece, _ in cutter.pre_tokenize_str(text)]
                   for name, cutter in cutters.items()}
        rows.append(json.dumps({"text": text, "bytes": lengths}, separators=(",", ":")))
    print("[" + ",\n".join(rows) + "]")


if __name__ == "__main__":
    main()
