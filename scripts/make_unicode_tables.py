#!/usr/bin/env python3
"""Writes src/text/unicode_tables.inc: what the pre-tokenizers must know of every code point.

The classes are read off the regex engine of Hugging Face tokenizers, character by character, because
a tokenizer is exact only if its idea of a letter is that of the reference, whatever Unicode version
that follows. Needs the Python package tokenizers (0.23.3 made the table that is kept).

    scripts/make_unicode_tables.py > src/text/unicode_tables.inc
"""
import unicodedata

from tokenizers import Regex, pre_tokenizers

# name of the flag in pretokenize.h's enum, and the class it stands for; the order is that of the bits
CLASSES = [("LETTER", r"\p{L}"), ("NUMBER", r"\p{N}"), ("PUNCT", r"\p{P}"), ("SYMBOL", r"\p{S}"), ("MARK", r"\p{M}"),
           ("SPACE", r"\s"), ("UPPER", r"[\p{Lu}\p{Lt}]"), ("LOWER", r"\p{Ll}"), ("DIGIT", r"\d"), ("HAN", r"\p{Han}"),
           ("WORD", r"\w")]
NFC_UNSAFE = 1 << len(CLASSES)  # may change under NFC, alone or after another character
BLOCK = 256


def members(pattern, code_points, text):
    """The code points that the pattern matches: those that a removing split leaves out."""
    kept = set()
    for _, (begin, end) in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text):
        kept.update(range(begin, end))
    return [c for i, c in enumerate(code_points) if i not in kept]


def nfc_unsafe(code_points):
    """Characters that are not their own NFC, are reordered, or may compose with what stands before."""
    unsafe = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Hangul vowels and finals
    for c in code_points:
        char = chr(c)
        if unicodedata.combining(char) or unicodedata.normalize("NFC", char) != char:
            unsafe.add(c)
        parts = unicodedata.decomposition(char).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            unsafe.add(int(parts[1], 16))
    return unsafe


def rows(numbers):
    line = ""
    for number in numbers:
        item = f"{number},"
        if len(line) + len(item) > 100:
            yield line
            line = ""
        line += item
    yield line


def main():
    code_points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    text = "".join(map(chr, code_points))
    flags = [0] * 0x110000
    for bit, (_, pattern) in enumerate(CLASSES):
        for c in members(pattern, code_points, text):
            flags[c] |= 1 << bit
    for c in nfc_unsafe(code_points):
        flags[c] |= NFC_UNSAFE
    blocks, index = {}, []
    for begin in range(0, 0x110000, BLOCK):
        index.append(blocks.setdefault(tuple(flags[begin:begin + BLOCK]), len(blocks)))
    print("/* Made by scripts/make_unicode_tables.py; do not edit. */")
    print("// clang-format off")
    print(f"const uint8_t unicode_block[{len(index)}] = {{")
    print("\n".join(rows(index)))
    print("};")
    print(f"const uint16_t unicode_flags[{len(blocks)}][{BLOCK}] = {{")
    for block in blocks:
        print("{")
        print("\n".join(rows(block)))
        print("},")
    print("};")
    print("// clang-format on")


if __name__ == "__main__":
    main()
