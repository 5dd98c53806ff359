"""Writes benchmarks/README.md, the index of the records: python tests/support/record_index.py."""

import json
import re

from repository import ROOT

RECORDS = ROOT / "benchmarks"
INDEX = RECORDS / "README.md"
READ = {
    "layers": ("the sets of `autotune bench-layers`", "../scripts/autotune_cli/layers/layer_sets.py"),
    "models": ("a network that a record names", "../docs/results.md#networks-that-no-database-knows"),
}
"""Folder -> what its files are for, and what names them."""
HEAD = """# Records

Each row is one record: the page and the section that quote its figures, the device, and the commit in the record.
"Uncommitted changes" means that tracked files differed from that commit; "recorded in" is the commit that added the
record. Charts (`.png`) belong to the record of the same name. Records of figures that no page quotes any more are in
the history: `git log --diff-filter=D --stat -- benchmarks`.

`python tests/support/record_index.py` writes this page, and a test compares it.

| record | quoted by | device | commit |
| --- | --- | --- | --- |
"""


def index():
    """Return the text of benchmarks/README.md."""
    quotes = _quotes()
    names = sorted(path.name for path in RECORDS.iterdir() if path.suffix in (".json", ".txt"))
    rows = [(f"[{name}]({name})", _by(quotes[name]), _device(name), _commit(name)) for name in names]
    rows += [
        (f"[{path.relative_to(RECORDS)}]({path.relative_to(RECORDS)})", f"[{about}]({link})", "-", "-")
        for folder, (about, link) in READ.items()
        for path in sorted((RECORDS / folder).iterdir())
        if path.is_file()
    ]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _quotes():
    """Return the place of the first quote of each record: page and heading; the README first, experiments last."""
    found = {}
    folders = ("", "docs", "docs/guide", "docs/internals", "docs/reference", "docs/experiments")
    for page in (page for folder in folders for page in sorted((ROOT / folder).glob("*.md"))):
        heading = ""
        for line in page.read_text().splitlines():
            if title := re.match(r"#+ (.*)", line):
                heading = title[1]
            for name in re.findall(r"\]\((?:\.\./)*benchmarks/([\w.-]+)\)", line):
                found.setdefault(name, (page.relative_to(ROOT).as_posix(), heading))
    return found


def _by(place):
    page, heading = place
    anchor = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
    return f"[{page.removeprefix('docs/')}, {heading.replace('|', ' ')}](../{page}#{anchor})"


def _device(name):
    if name.endswith(".json") and (machine := json.loads((RECORDS / name).read_text()).get("machine")):
        return str(machine.get("device") or machine.get("gpu") or machine.get("cpu"))
    if name.endswith("-problems.txt"):
        return "-"
    gpu = re.search(r"nvidia-(h\d+)", name)
    return f"NVIDIA {gpu[1].upper()}" if gpu else "CPU"


def _commit(name):
    record = json.loads((RECORDS / name).read_text()) if name.endswith(".json") else {}
    words = [record["commit"][:10]] if record.get("commit") else []
    words += ["uncommitted changes"] if record.get("uncommitted_changes") else []
    words += [f"recorded in {record['recorded_in'][:10]}"] if record.get("recorded_in") else []
    return ", ".join(words) or "-"


if __name__ == "__main__":
    INDEX.write_text(index())
