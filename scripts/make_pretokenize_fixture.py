#!/usr/bin/env python3
"""Writes tests/text/fixtures/pretokenize.json: seeded random strings cut by Hugging Face tokenizers.

The expressions are those that the models publish (or, where a name is llama.cpp's own, its list). The
fixture is this oracle's word, never ridge's. Needs the Python package tokenizers.

    scripts/make_pretokenize_fixture.py > tests/text/fixtures/pretokenize.json
"""
import json
import random

from tokenizers import Regex, pre_tokenizers

SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CJK = r"[\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+"
STOPS = " ?[^(\\s|.,!?…。，、।۔،)]+"


def words(digits, lead=ENGLISH + "|"):
    return lead + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACE


def cased(suffix, digits):
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (f"{lead}{UPPER}*{LOWER}+{suffix}|{lead}{UPPER}+{LOWER}*{suffix}|" + r"\p{N}" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACE)


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
    "deepseek-v3": [r"\p{N}{1,3}", r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                    r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACE],
    "bloom": [STOPS],
    "viking": [STOPS, r"\p{N}"],
}
POOLS = ["'", "sStTrReEvVmMlLdDſ", " ", " \t\n\r\v\f\x85\xa0\u2003\u3000\u2028", "\r\n", "0123456789",
         "abcXYZéÉßĲǅʰªºµ", "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~¡§«€£©", "中文字かなカナ한글㐀", "٠١٢½²Ⅷ③๑",
         "\u0301\u0300\u0327\u0903\u20dd\u0e31", "😀👨🏽\ufe0f\u200d", "\x01\x1f\x7f\u200b\ufeff\u00ad", "αβΓДжבגاب",
         "。，、।۔،…！？‘’　（）"]


def random_text(rng):
    length, text = rng.choice([3, 8, 20, 40]), ""
    pools = rng.sample(POOLS, rng.choice([2, 3, 5, len(POOLS)]))
    while len(text) < length:
        text += "".join(rng.choice(rng.choice(pools)) for _ in range(rng.choice([1, 1, 2, 3, 5])))
        if rng.random() < 0.1:
            text += rng.choice(["'s", "'LL", "'Re", "'ſ", " 'd", "don't", "12345"])
    return text


def main():
    rng = random.Random(20)
    cutters = {name: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in expressions])
               for name, expressions in EXPRESSIONS.items()}
    rows = []
    for _ in range(150):
        text = random_text(rng)
        lengths = {name: [len(piece.encode()) for piece, _ in cutter.pre_tokenize_str(text)]
                   for name, cutter in cutters.items()}
        rows.append(json.dumps({"text": text, "bytes": lengths}, separators=(",", ":")))
    print("[" + ",\n".join(rows) + "]")


if __name__ == "__main__":
    main()
