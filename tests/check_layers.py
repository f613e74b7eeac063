#!/usr/bin/env python3
"""Enforces the dependency order of the house: a folder may include only lower numbers, itself, or base/.

Also: kv/ and sched/ include neither device/ nor server/; another folder's *_internal.h is private to it.
The numbers are those of the design; the closing line counts the folders that keep the order.
"""
import pathlib
import re
import sys

LEVEL = {"base": 0, "format": 1, "text": 2, "kv": 1, "sample": 1, "roof": 1, "traffic": 2, "device": 2, "model": 3,
         "sched": 3, "engine": 4, "server": 6, "plan": 5, "load": 5, "quant": 5, "hub": 5, "cli": 7}
FORBIDDEN = {"kv": {"device", "server"}, "sched": {"device", "server"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def folder_faults(root, folder):
    faults = []
    for path in sorted((root / folder).rglob("*.[ch]*")):
        if path.suffix not in (".c", ".h", ".inc"):
            continue
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            where = f"{path.relative_to(root.parent)}: includes {name}"
            parts = name.split("/")
            if name == "ridge.h":
                continue
            if len(parts) == 1:  # beside the file itself
                if not (path.parent / name).exists():
                    faults.append(f"{where}: not beside it; say the folder")
                continue
            target = parts[0]
            if target not in LEVEL:
                faults.append(f"{where}: '{target}' is no folder of src/")
            elif target != folder and target != "base" and LEVEL[target] >= LEVEL[folder]:
                faults.append(f"{where}: {folder} is {LEVEL[folder]}, {target} is {LEVEL[target]}")
            elif target in FORBIDDEN.get(folder, ()):
                faults.append(f"{where}: {folder}/ must not know {target}/")
            elif target != folder and parts[-1].endswith("_internal.h"):
                faults.append(f"{where}: internal to {target}/")
    return faults


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    passed = failed = 0
    for folder in sorted(p.name for p in root.iterdir() if p.is_dir()):
        faults = [f"src/{folder}: not in the table of folders"] if folder not in LEVEL else folder_faults(root, folder)
        for fault in faults:
            print(fault)
        failed += bool(faults)
        passed += not faults
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
