#!/usr/bin/env python3
"""Writes a GGUF file with only the first layers of a model: a draft model for trying out speculative decoding.

    scripts/cut_layers.py IN OUT LAYERS

Everything else stays as it is, byte for byte: the vocabulary, the embedding, the output. `ARCH.block_count` becomes LAYERS,
arrays under `ARCH.` with an entry per layer are cut with it, and tensors `blk.N.` of later layers are left out. IN is one
file (no split one) of GGUF v2 or v3, little-endian.
"""
import argparse
import os
import re
import struct
import sys

STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of values, by type
INTEGERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}


class Failure(Exception):
    """Ends the program with this text on stderr."""


class Reader:
    def __init__(self, file):
        self.file = file
        self.size = os.fstat(file.fileno()).st_size

    def bytes(self, n):
        if n > self.size - self.file.tell():
            raise Failure(f"byte {self.file.tell()}: {n} bytes expected, the file ends at {self.size}")
        return self.file.read(n)

    def number(self, form):
        return struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def string(self):
        return self.bytes(self.number("<Q"))

    def value(self, kind):
        """The bytes of a value: those of a string without its length, those of an array's entries in a list."""
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            of, n = self.number("<I"), self.number("<Q")
            if of in SIZES:
                whole = self.bytes(n * SIZES[of])
                return of, [whole[i:i + SIZES[of]] for i in range(0, len(whole), SIZES[of])]
            if of == STRING:
                return of, [self.string() for _ in range(n)]
            raise Failure(f"byte {self.file.tell()}: an array of type {of}")
        if kind not in SIZES:
            raise Failure(f"byte {self.file.tell()}: a value of type {kind}")
        return self.bytes(SIZES[kind])


def string_bytes(text):
    return struct.pack("<Q", len(text)) + text


def value_bytes(kind, value):
    if kind == STRING:
        return string_bytes(value)
    if kind == ARRAY:
        of, entries = value
        return struct.pack("<IQ", of, len(entries)) + b"".join(string_bytes(e) if of == STRING else e for e in entries)
    return value


def read_head(r):
    """(version, [key, type, value], [name, dimensions, type, offset], where the data begins, the data's alignment)"""
    if r.bytes(4) != b"GGUF":
        raise Failure("not a GGUF file")
    version, n_tensors, n_values = r.number("<I"), r.number("<Q"), r.number("<Q")
    if version not in (2, 3):
        raise Failure(f"version {version}, expected 2 or 3")
    values, tensors = [], []
    for _ in range(n_values):
        key, kind = r.string().decode(), r.number("<I")
        values.append([key, kind, r.value(kind)])
    for _ in range(n_tensors):
        name = r.string().decode()
        dimensions = r.bytes(8 * r.number("<I"))
        tensors.append([name, dimensions, r.number("<I"), r.number("<Q")])
    alignment = next((integer(k, v) for key, k, v in values if key == "general.alignment"), 32)
    return version, values, tensors, align(r.file.tell(), alignment), alignment


def integer(kind, value):
    if kind not in INTEGERS:
        raise Failure(f"an integer expected, found a value of type {kind}")
    return struct.unpack(INTEGERS[kind], value)[0]


def align(at, alignment):
    return (at + alignment - 1) // alignment * alignment


def cut_values(values, n_layers):
    found = {key: (kind, value) for key, kind, value in values}
    if "split.count" in found and integer(*found["split.count"]) > 1:
        raise Failure("a part of a split model: one file expected")
    arch = found.get("general.architecture", (STRING, b""))[1].decode()
    if f"{arch}.block_count" not in found:
        raise Failure(f"no {arch}.block_count")
    n_before = integer(*found[f"{arch}.block_count"])
    if not 1 <= n_layers <= n_before:
        raise Failure(f"LAYERS: expected 1 to {n_before}, found {n_layers}")
    for entry in values:
        key, kind, value = entry
        if key == f"{arch}.block_count":
            entry[2] = struct.pack(INTEGERS[kind], n_layers)
        elif key.startswith(f"{arch}.") and kind == ARRAY and len(value[1]) == n_before:
            entry[2] = value[0], value[1][:n_layers]


def is_kept(name, n_layers):
    layer = re.match(r"blk\.(\d+)\.", name)
    return layer is None or int(layer[1]) < n_layers


def cut(source, out, n_layers):
    r = Reader(source)
    version, values, tensors, data, alignment = read_head(r)
    cut_values(values, n_layers)
    ends = dict(zip(sorted(t[3] for t in tensors), [*sorted(t[3] for t in tensors)[1:], r.size - data]))
    kept = [t for t in tensors if is_kept(t[0], n_layers)]
    head = struct.pack("<4sIQQ", b"GGUF", version, len(kept), len(values))
    for key, kind, value in values:
        head += string_bytes(key.encode()) + struct.pack("<I", kind) + value_bytes(kind, value)
    at = 0
    for name, dimensions, kind, offset in kept:
        head += string_bytes(name.encode()) + struct.pack("<I", len(dimensions) // 8) + dimensions
        head += struct.pack("<IQ", kind, at)
        at += align(ends[offset] - offset, alignment)
    out.write(head.ljust(align(len(head), alignment), b"\0"))
    for _, _, _, offset in kept:
        source.seek(data + offset)
        n = ends[offset] - offset
        out.write(r.bytes(n).ljust(align(n, alignment), b"\0"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", metavar="IN")
    parser.add_argument("output", metavar="OUT")
    parser.add_argument("layers", metavar="LAYERS", type=int)
    args = parser.parse_args()
    part = args.output + ".part"
    try:
        with open(args.input, "rb") as source, open(part, "wb") as out:
            cut(source, out, args.layers)
        os.replace(part, args.output)
    except (Failure, OSError, UnicodeDecodeError) as why:
        if os.path.exists(part):
            os.remove(part)
        print(f"cut_layers: {args.input}: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
