#!/usr/bin/env python3
"""Writes tests/format/quant_golden.inc: blocks of every tensor type and the floats they stand for.

The floats are those of the `gguf` package (pip install gguf numpy), never of our own code:

    python3 tests/format/make_quant_golden.py > tests/format/quant_golden.inc

Each type has three blocks (plain types: 24 values) of random bytes: with ordinary scales, with the
smallest subnormal and with the largest finite f16 as scale.
"""
import numpy as np
from gguf import GGMLQuantizationType, dequantize
from gguf.constants import GGML_QUANT_SIZES

# type: where the f16 fields of a block lie
TYPES = {"F32": [], "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
         "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
         "IQ4_NL": [0]}
SCALES = [None, (0x0001, 0x83FF), (0xFBFF, 0x7BFF)]


def blocks_of(rng, size, fields, n):
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for i in range(n):
        chosen = SCALES[i % 3]
        for j, at in enumerate(fields):
            bits = np.float16(rng.normal() * 0.1).view(np.uint16) if chosen is None else np.uint16(chosen[j])
            blocks[i, at:at + 2] = np.frombuffer(bits.tobytes(), dtype=np.uint8)
    return blocks


def table(kind, name, values, width):
    print(f"static const {kind} {name}[] = {{")
    for i in range(0, len(values), width):
        print("    " + " ".join(f"{v:#x}," for v in values[i:i + width]))
    print("};")


def main():
    rng = np.random.default_rng(20260101)
    print("/* Made by make_quant_golden.py with the gguf package. */")
    for name, fields in TYPES.items():
        kind = GGMLQuantizationType[name]
        values, size = GGML_QUANT_SIZES[kind]
        blocks = blocks_of(rng, size, fields, 24 if values == 1 else 3)
        if name in ("F32", "BF16"):  # finite: the top byte's exponent bits are not all ones
            blocks[:, size - 1] &= 0xBF
        floats = dequantize(blocks.reshape(-1) if values == 1 else blocks, kind)
        assert np.isfinite(floats).all()
        table("uint8_t", f"blocks_{name.lower()}", blocks.reshape(-1).tolist(), 20)
        table("uint32_t", f"floats_{name.lower()}", floats.reshape(-1).view(np.uint32).tolist(), 9)
    print("static const struct {\n    quant_type type;\n    const uint8_t *blocks;\n    size_t size;")
    print("    const uint32_t *floats;\n    size_t n;\n} golden[] = {")
    for name in TYPES:
        low = name.lower()
        print(f"    {{QUANT_{name}, blocks_{low}, sizeof blocks_{low}, floats_{low},"
              f" sizeof floats_{low} / 4}},")
    print("};")


if __name__ == "__main__":
    main()
