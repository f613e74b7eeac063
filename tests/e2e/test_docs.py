"""The pages are true to the code: every file that they name exists, every function stands in the file named with it."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# `src/a/b.c`: `function`, in the pages' own notation; the function is optional.
NAMED = re.compile(r"`((?:src|tests|scripts|bench|include)/[\w./-]+\.\w+)`(?::\s+`(\w+)`)?")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_and_links(page):
    text = page.read_text(encoding="utf-8")
    faults = [f"link to {target}" for target in LINK.findall(text) if not (page.parent / target).exists()]
    for path, function in NAMED.findall(text):
        if not (ROOT / path).is_file():
            faults.append(f"{path} does not exist")
        elif function and not re.search(rf"\b{function}\b", (ROOT / path).read_text(encoding="utf-8")):
            faults.append(f"{path} has no {function}")
    assert not faults


def test_the_life_of_a_request_has_eight_steps():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    life = text.split("## The life of a request")[1].split("\n## ")[0]
    assert [int(n) for n in re.findall(r"^(\d+)\. ", life, re.M)] == list(range(1, 9))
