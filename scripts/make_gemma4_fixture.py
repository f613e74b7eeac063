#!/usr/bin/env python3
"""Writes tests/text/fixtures/gemma4.json: a small vocabulary of gemma4's kind and texts with their ids.

The oracle is Hugging Face tokenizers with the tokenizer.json that such models have: BPE with byte
fallback and fused unknowns over a text whose spaces became U+2581, no pattern before it. The
vocabulary is trained here, from the docstrings of Python's library; no published one was at hand.

    scripts/make_gemma4_fixture.py [CASES] > tests/text/fixtures/gemma4.json
"""
import argparse
import json
import random
import sys

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

CONTROL, BYTES = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], [f"<0x{b:02X}>" for b in range(256)]
USER = ["<start>", "<tool|>"]
GAPS = [" ", "  ", "\n", "\n\n", "\n\n\n", "\n" * 5, "\t", "\r\n", " \n", "\n ", "    ", "\u2581", "\u2581\u2581"]
CORPUS = (argparse.__doc__ + random.__doc__ + json.__doc__).split("\n")


def trained():
    """The trainer leaves its special tokens findable in texts; bytes are not to be: hence the second."""
    first = Tokenizer(models.BPE())
    first.normalizer = normalizers.Replace(" ", "\u2581")
    first.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=CONTROL + BYTES, show_progress=False)
    first.train_from_iterator(CORPUS + ["\n\n", "\n\n\n", "\n" * 4, "  ", "    "] * 9, trainer)
    model = json.loads(first.to_str())["model"]
    tokenizer = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]],
                                     unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = first.normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in USER])
    return tokenizer


def random_text(rng, words):
    text = ""
    for _ in range(rng.choice([1, 3, 10])):
        kind = rng.random()
        if kind < 0.5:
            text += " " + rng.choice(words)
        elif kind < 0.7:
            text += rng.choice(GAPS)
        elif kind < 0.8:
            text += rng.choice(USER + ["<0x41>", "<0x0A>", "<unk"])
        elif kind < 0.9:
            text += "".join(rng.choice("abcdefthe ") for _ in range(rng.randint(1, 12)))
        else:
            blocks = (0x80, 0x800), (0x800, 0xD800), (0x10000, 0x1F900)
            text += "".join(chr(rng.randrange(*rng.choice(blocks))) for _ in range(rng.randint(1, 4)))
    return text


def main():
    rng, tokenizer = random.Random(4), trained()
    words = " ".join(CORPUS).split()
    merges = [" ".join(m) for m in json.loads(tokenizer.to_str())["model"]["merges"]]
    texts = [random_text(rng, words) for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 150)]
    cases = [json.dumps([t, tokenizer.encode(t, add_special_tokens=False).ids]) for t in texts]
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    print(f'{{"tokens":{json.dumps(tokens)},\n"merges":{json.dumps(merges)},\n"cases":[\n' + ",\n".join(cases) + "]}")


if __name__ == "__main__":
    main()
