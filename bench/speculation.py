#!/usr/bin/env python3
"""Speculative decoding by n-grams against plain decoding, on this machine.

    bench/speculation.py [--set edits|mixed|all] [--pairs N] [--tokens N] [--prompts NAME,...] [--json] [MODEL]

Two servers of one model, one with `--speculative ngram` and its adaptive default, answer the same prompts one at a time: a
pair is plain then n-grams, the next n-grams then plain, so that a slow minute of the machine meets both. An answer is greedy
and as long as asked (`--tokens`), its prompt in the prefix cache after one answer that is not counted: what is timed is
decoding. Of each prompt: the medians of tokens/s, and of the pairs' ratios the median and the range.

The bars: on prompts that ask for a file with a small edit the median ratio is at least 1.5 on qwen2.5-coder-0.5b (smaller
models don't repeat the file); on all others it is at least 0.97. Answers must be equal.
"""
import argparse
import json
import os
import sys
import time
import urllib.request

import common
import serving

MODEL = "qwen2.5-coder-0.5b"
LEAST_EDIT, LEAST_MIXED = 1.5, 0.97

PYTHON = '''\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("insufficient funds")
        self.balance -= amount
        self.history.append(("withdraw", amount))

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)

    def report(self):
        lines = [f"Account of {self.owner}"]
        for kind, amount in self.history:
            lines.append(f"{kind:>10}: {amount:10.2f}")
        lines.append(f"{'balance':>10}: {self.balance:10.2f}")
        return "\\n".join(lines)
'''
C = '''\
struct list {
    struct node *head;
    struct node *tail;
    size_t count;
};

struct node *list_push(struct list *list, int value) {
    struct node *node = malloc(sizeof *node);
    if (node == NULL) return NULL;
    node->value = value;
    node->next = NULL;
    if (list->tail != NULL)
        list->tail->next = node;
    else
        list->head = node;
    list->tail = node;
    list->count++;
    return node;
}

int list_pop(struct list *list, int *value) {
    struct node *node = list->head;
    if (node == NULL) return 0;
    *value = node->value;
    list->head = node->next;
    if (list->head == NULL) list->tail = NULL;
    list->count--;
    free(node);
    return 1;
}
'''
ARTICLE = '''\
The harbour at Velmar was built in 1871 to export slate from the quarries above the town. At its peak, 300 men worked there
and two ships left every day. When the railway came in 1902, most of the slate went by land, and the harbour slowly silted
up. In 1954 the last cargo ship sailed. Today the quay is used by anglers and by a small school that teaches sailing to
children. The town council plans to dredge the basin next year and to open a museum in the old customs house.
'''


def edit(task, language, file):
    return f"{task} Answer with the whole file and nothing else.\n\n```{language}\n{file}```"


EDITS = {
    "rename a variable": edit("Rename the attribute `balance` to `funds` everywhere.", "python", PYTHON),
    "add docstrings": edit("Add a one-line docstring to the method `report`.", "python", PYTHON),
    "rename a field": edit("Rename the field `count` to `length` everywhere.", "c", C),
}
MIXED = {
    "chat": "Hi! I have a free afternoon and it is raining. What could I do?",
    "advice": "How should I prepare for my first job interview?",
    "story": "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "essay": "Explain why the sky is blue, as for a curious ten-year-old.",
    "poem": "Write a poem of four stanzas about autumn.",
    "code": "Write a Python function that returns the longest palindrome in a string, with a short explanation.",
    "sql": "Write an SQL schema for a library with books, members and loans, with example queries.",
    "list": "List twenty animals with one interesting fact about each.",
    "numbers": "Count from 1 to 60, one number per line.",
    "translation": "Translate into French, then into German:\n\n" + ARTICLE,
    "summary": "Summarise in three bullet points:\n\n" + ARTICLE,
    "json": "Give a JSON array of ten people with the fields name, age, city and a list of two hobbies.",
    "table": "Make a Markdown table of ten countries with capital, population and official language.",
    "maths": "A train leaves at 9:40 and travels 210 km at 84 km/h. When does it arrive? Show each step.",
    "recipe": "Give me a recipe for lentil soup with ingredients and numbered steps.",
}


def answer(server, text, n_tokens):
    """(the text, tokens per second): from asking to the last byte, the prompt being cached."""
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": n_tokens, "ignore_eos": True,
                       "temperature": 0}).encode()
    ask = urllib.request.Request(server.url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    began = time.monotonic()
    with urllib.request.urlopen(ask, timeout=300) as reply:
        said = json.load(reply)
    return said["choices"][0]["message"]["content"], said["usage"]["completion_tokens"] / (time.monotonic() - began)


def measure(servers, name, text, args):
    serving.say(f"{name}")
    texts = {answer(server, text, args.tokens)[0] for server in servers.values()}
    rates = {kind: [] for kind in servers}
    for pair in range(args.pairs):
        for kind in list(servers)[::1 if pair % 2 == 0 else -1]:
            said, rate = answer(servers[kind], text, args.tokens)
            texts.add(said)
            rates[kind].append(rate)
    ratios = [b / a for a, b in zip(rates["plain"], rates["ngram"])]
    return {"prompt": name, "plain": serving.spread(rates["plain"]), "ngram": serving.spread(rates["ngram"]),
            "ratio": serving.spread(ratios), "answers_equal": len(texts) == 1}


def chosen(args):
    """name -> (text, the least ratio)"""
    prompts = {}
    if args.set != "mixed":
        least = LEAST_EDIT if common.short_name(args.model) == MODEL else LEAST_MIXED
        prompts |= {name: (text, least) for name, text in EDITS.items()}
    if args.set != "edits":
        prompts |= {name: (text, LEAST_MIXED) for name, text in MIXED.items()}
    if args.prompts:
        wanted = args.prompts.split(",")
        if unknown := set(wanted) - set(prompts):
            raise SystemExit(f"--prompts: unknown: {', '.join(sorted(unknown))}; there are: {', '.join(prompts)}")
        prompts = {name: prompts[name] for name in wanted}
    return prompts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODEL, metavar="MODEL")
    parser.add_argument("--set", choices=("edits", "mixed", "all"), default="all")
    parser.add_argument("--prompts", metavar="NAME,NAME,...", help="of the set, these only")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="no table")
    args = parser.parse_args()

    path = os.path.abspath(common.model_path(args.model))
    results = []
    with serving.ridge(path, args, "--max-model-len", 2048) as plain, \
            serving.ridge(path, args, "--max-model-len", 2048, "--speculative", "ngram") as ngram:
        for name, (text, least) in chosen(args).items():
            result = measure({"plain": plain, "ngram": ngram}, name, text, args)
            held = result["answers_equal"] and result["ratio"]["median"] >= least
            results.append({**result, "least": least, "holds": held})
    if not args.json:
        common.print_table(["prompt", "plain, tokens/s", "n-grams, tokens/s", "ratio", "at least", "answers equal"],
                           [[r["prompt"], serving.cell(r["plain"], "{:.1f}"), serving.cell(r["ngram"], "{:.1f}"),
                             serving.cell(r["ratio"]), r["least"], r["answers_equal"]] for r in results])
    print(json.dumps({"model": common.short_name(path), "threads": args.threads, "pairs": args.pairs,
                      "tokens": args.tokens, "results": results, "holds": all(r["holds"] for r in results)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
