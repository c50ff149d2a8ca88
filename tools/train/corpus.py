"""Builds the natural-language and code corpus of the mini models from Debian packages.

    python tools/train/corpus.py --out build/train

Packages are fetched with `apt-get download` and unpacked with `dpkg -x` below `<out>/packages`; nothing is installed.
Every source is permissively licensed (spec/operations.md 9.3). The result is one JSON-lines file per class and split,
`<out>/text/<class>.<train|heldout>.jsonl`, each line `{"source", "group", "text"}`, and a manifest that records package,
version, licence, bytes and the sha256 of the cleaned text.

The held-out split takes whole file groups (a directory for large trees, otherwise a file), so no held-out line comes
from a file that was trained on. Blocks whose 13-word shingles were mostly seen before are dropped, in both splits.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import json
import pathlib
import random
import subprocess
import sys
from typing import Callable, Iterator, NamedTuple

import corpus_text as clean
import generated
from corpus_dedupe import ShingleFilter

SEED = 20261129
HELDOUT_SHARE = 0.05
# Packages whose documentation folder is a link to that of another package of the same source.
COPYRIGHT_IN = {"libpython3.11-stdlib": "libpython3.11-minimal", "libpython3.11-testsuite": "libpython3.11-minimal"}
GENERATED = {"json": (generated.json_document, 1_500_000), "shell": (generated.shell_document, 1_000_000)}
MAX_FILE_CHARS = 120_000  # one huge file must not dominate its class


class Source(NamedTuple):
    """One package as one kind of text. `cap` bounds the cleaned bytes taken, `patterns` are fnmatch on the unpacked path."""

    package: str
    text_class: str
    licence: str  # SPDX expression, checked against the words in `evidence`
    evidence: str  # a phrase the package's copyright file must contain
    patterns: tuple[str, ...]
    cleaner: Callable[[str], str]
    cap: int
    exclude: tuple[str, ...] = ()
    group_depth: int = 0  # 0: every file is its own group; 1: its directory


SOURCES = (
    Source("r-cran-janeaustenr", "prose", "MIT AND public-domain", "MIT", ("*/data/Rdata.rdb",), clean.austen, 4_500_000),
    Source("python3.11-doc", "prose", "PSF-2.0", "PSF", ("*/_sources/*.rst.txt",), clean.markup, 5_000_000,
           ("*changelog*", "*/license*")),
    Source("postgresql-doc-15", "prose", "PostgreSQL", "PostgreSQL", ("*/html/*.html",), clean.html, 4_000_000,
           ("*release-*", "*bookindex*", "*legalnotice*", "*/html/index.html", "*features-*", "*errcodes*", "*biblio*")),
    Source("sqlite3-doc", "prose", "public-domain", "public", ("*.html",), clean.html, 4_000_000,
           ("*changes.html", "*releaselog*", "*keyword_index*", "*copyright*", "*/matrix/*", "*toc.html", "*requirements*")),
    Source("nodejs-doc", "prose", "MIT", "MIT", ("*/api/*.md.gz",), clean.markup, 1_800_000),
    Source("wordnet-base", "prose", "WordNet-3.0", "WordNet", ("*/wordnet/data.*",), clean.wordnet, 1_800_000),
    Source("cmake-data", "prose", "BSD-3-Clause", "BSD", ("*/Help/*.rst",), clean.markup, 500_000),
    Source("libssl-doc", "prose", "Apache-2.0", "Apache", ("*/man3/*.gz", "*/man7/*.gz"), clean.roff, 700_000),
    Source("libcurl4-doc", "prose", "curl", "curl", ("*/man3/*.gz",), clean.roff, 400_000),
    Source("dict-devil", "prose", "public-domain", "public domain", ("*.dict.dz",), clean.markup, 400_000),
    Source("freebsd-manpages", "prose", "BSD-2-Clause", "BSD", ("*/man[457]/*.gz",), clean.roff, 900_000),
    Source("golang-1.19-src", "code", "BSD-3-Clause", "BSD", ("*.go",), clean.code, 9_000_000,
           ("*/vendor/*", "*tables.go", "*/testdata/*", "*/test/*", "*_gen.go", "*zerrors*", "*zsys*", "*ztypes*", "*rewrite*",
            "*opGen*", "*/anames*", "*_string.go"), 1),
    Source("libpython3.11-testsuite", "code", "PSF-2.0", "PSF", ("*.py",), clean.code, 4_000_000,
           ("*decimaltestdata*", "*/cjkencodings*", "*test_unicodedata*", "*badsyntax*")),
    Source("libpython3.11-stdlib", "code", "PSF-2.0", "PSF", ("*.py",), clean.code, 3_500_000,
           ("*/encodings/*", "*/pydoc_data/*", "*entities.py", "*_sysconfigdata*")),
    Source("libpython3.11-minimal", "code", "PSF-2.0", "PSF", ("*.py",), clean.code, 1_300_000, ("*/encodings/*",)),
    Source("libboost1.81-dev", "code", "BSL-1.0", "Boost", ("*.hpp", "*.ipp"), clean.code, 1_800_000,
           ("*/preprocessed/*", "*/mpl/*", "*/preprocessor/*", "*/vmd/*", "*/aux_/*", "*limits*"), 1),
    Source("cmake-data", "code", "BSD-3-Clause", "BSD", ("*/Modules/*.cmake",), clean.code, 1_000_000),
    Source("libabsl-dev", "code", "Apache-2.0", "Apache", ("*.h", "*.inc"), clean.code, 1_200_000),
    Source("googletest", "code", "BSD-3-Clause", "BSD", ("*.cc", "*.h"), clean.code, 600_000, ("*/custom/*",)),
    Source("nlohmann-json3-dev", "code", "MIT", "MIT", ("*/nlohmann/detail/*.hpp", "*/examples/*.cpp"), clean.code, 500_000),
    Source("libcurl4-doc", "code", "curl", "curl", ("*/examples/*.c",), clean.code, 300_000),
    Source("node-typescript", "code", "Apache-2.0", "Apache", ("*.ts",), clean.code, 1_500_000),
    Source("zsh-common", "shell", "MIT-Modern-Variant", "permission", ("*/functions/*", "*/scripts/*"), clean.code, 4_200_000,
           ("*.zwc",)),
    Source("git-extras", "shell", "MIT", "MIT", ("*/usr/bin/*", "*/completions/*"), clean.code, 300_000),
    Source("neofetch", "shell", "MIT", "MIT", ("*/bin/neofetch",), clean.code, 150_000),
    Source("dehydrated", "shell", "MIT", "MIT", ("*/bin/*", "*.sh", "*.md"), clean.code, 150_000),
    Source("shunit2", "shell", "Apache-2.0", "Apache", ("*.sh", "*/shunit2", "*.md"), clean.code, 150_000),
    Source("bats", "shell", "MIT", "MIT", ("*.bash", "*/bin/*", "*/libexec/*"), clean.code, 150_000),
    Source("rbenv", "shell", "MIT", "MIT", ("*/libexec/*", "*.md.gz"), clean.code, 100_000),
    Source("ruby-build", "shell", "MIT", "MIT", ("*/bin/*",), clean.code, 100_000),
    Source("virtualenvwrapper", "shell", "MIT", "MIT", ("*.sh",), clean.code, 100_000),
    Source("zplug", "shell", "MIT", "MIT", ("*.zsh", "*/autoload/*"), clean.code, 200_000),
    Source("zsh-syntax-highlighting", "shell", "BSD-3-Clause", "BSD", ("*.zsh",), clean.code, 100_000),
    Source("fzf", "shell", "MIT", "Expat", ("*.zsh", "*.bash", "*/bin/fzf-tmux"), clean.code, 60_000),
    Source("node-mdn-browser-compat-data", "json", "CC0-1.0", "CC0", ("*/browser-compat-data/*.json",), clean.json_text,
           8_000_000),
    Source("json-schema-test-suite", "json", "MIT", "MIT", ("*.json",), clean.json_text, 500_000),
    Source("cmake-data", "json", "BSD-3-Clause", "BSD", ("*.json",), clean.json_text, 150_000),
    Source("node-ajv", "json", "MIT", "MIT", ("*.json",), clean.json_text, 150_000),
    Source("node-typescript", "json", "Apache-2.0", "Apache", ("*.json",), clean.json_text, 300_000,
           ("*/lib/*/diagnostic*",)),
)


def fetch(package: str, packages: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Downloads and unpacks one package; returns its tree and version. Keeps what an earlier run left."""
    tree = packages / package
    debs = sorted(packages.glob(f"{package}_*.deb"))
    if not debs:
        done = subprocess.run(["apt-get", "download", package], cwd=packages, capture_output=True, text=True)
        debs = sorted(packages.glob(f"{package}_*.deb"))
        if not debs:
            sys.exit(f"corpus: cannot download Debian package {package}: {done.stderr.strip()}")
    if not tree.is_dir():
        subprocess.run(["dpkg", "-x", debs[-1].name, package], cwd=packages, check=True)
    version = subprocess.run(["dpkg-deb", "-f", debs[-1].name, "Version"], cwd=packages, check=True, capture_output=True,
                             text=True).stdout.strip()
    return tree, version


def check_licence(source: Source, packages: pathlib.Path) -> str:
    """Returns the sha256 of the package's copyright file after checking that it names the expected licence."""
    owner = COPYRIGHT_IN.get(source.package, source.package)
    tree, _ = fetch(owner, packages)
    path = tree / "usr/share/doc" / owner / "copyright"
    if not path.is_file():
        sys.exit(f"corpus: {owner}: no copyright file at {path}")
    text = path.read_text(encoding="utf-8", errors="replace")
    if source.evidence.lower() not in text.lower():
        sys.exit(f"corpus: {owner}: copyright file does not mention {source.evidence!r}; check the licence")
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: pathlib.Path) -> str:
    """File content as text: gzip is opened by name, R data and invalid UTF-8 pass through as Latin-1."""
    raw = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        raw = gzip.decompress(raw)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def order_key(source: Source, group: str) -> int:
    """A number in [0, 2^32) that decides both the sampling order and the split of a file group."""
    return int.from_bytes(hashlib.sha256(f"{SEED}:{source.package}:{group}".encode()).digest()[:4], "big")


def documents(source: Source, tree: pathlib.Path) -> Iterator[tuple[int, str, str]]:
    """Yields (order, group, cleaned text) of the files of one source, in sampling order."""
    files = []
    for path in tree.rglob("*"):
        name = path.relative_to(tree).as_posix()
        if path.is_symlink() or not path.is_file():
            continue
        if not any(fnmatch.fnmatch("/" + name, p) for p in source.patterns):
            continue
        if any(fnmatch.fnmatch("/" + name, p) for p in source.exclude):
            continue
        group = str(path.relative_to(tree).parent) if source.group_depth else name
        files.append((order_key(source, group), group, name))
    for order, group, name in sorted(files):
        cleaned = source.cleaner(read(tree / name))
        parts = clean.split_books(cleaned) if source.cleaner in (clean.austen, clean.wordnet) else [cleaned]
        for i, part in enumerate(parts):
            part_group = group if len(parts) == 1 else f"{group}#{i}"
            part_order = order if len(parts) == 1 else order_key(source, part_group)
            if len(part) >= 200:
                yield part_order, part_group, part[:MAX_FILE_CHARS]


def collect(source: Source, tree: pathlib.Path) -> list[dict]:
    """Documents of one source up to its cap, each with its split."""
    out, used = [], 0
    for order, group, text in sorted(documents(source, tree)):
        if used >= source.cap:
            break
        held_out = (order * 2654435761 % (1 << 32)) < HELDOUT_SHARE * (1 << 32)
        out.append({"source": source.package, "class": source.text_class, "group": group, "text": text,
                    "split": "heldout" if held_out else "train"})
        used += len(text.encode())
    return out


def collect_generated(text_class: str) -> list[dict]:
    """Documents of our own generators, split like files."""
    make, cap = GENERATED[text_class]
    out, used = [], 0
    while used < cap:
        name = f"{text_class}:{len(out)}"
        text = make(random.Random(f"{SEED}:{name}"))
        out.append({"source": "generated", "class": text_class, "group": name, "text": text,
                    "split": "heldout" if len(out) % round(1 / HELDOUT_SHARE) == 0 else "train"})
        used += len(text)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/train"))
    parser.add_argument("--manifest", type=pathlib.Path, default=pathlib.Path("models/manifest.json"))
    args = parser.parse_args()
    packages = args.out / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    text_dir = args.out / "text"
    text_dir.mkdir(exist_ok=True)

    docs, meta = [], {}
    for source in SOURCES:
        tree, version = fetch(source.package, packages)
        found = collect(source, tree)
        if not found:
            sys.exit(f"corpus: {source.package} ({source.text_class}): no file matches {source.patterns}")
        meta[source.package, source.text_class] = (version, source.licence, check_licence(source, packages))
        docs += found
        print(f"{source.text_class:6} {source.package:28} {len(found):5} files "
              f"{sum(len(d['text']) for d in found) / 1e6:6.2f} M chars", flush=True)

    for text_class in GENERATED:
        docs += collect_generated(text_class)
        meta["generated", text_class] = (f"seed {SEED}", "Apache-2.0", "")

    # Train first: a held-out block that repeats training text must go, never the other way round.
    seen, kept = ShingleFilter(), []
    for split in ("train", "heldout"):
        for doc in docs:
            if doc["split"] == split:
                if doc["source"] != "generated":
                    doc["text"] = seen.filter(doc["text"], whole=doc["class"] in ("code", "shell"))
                if len(doc["text"]) >= 200:
                    kept.append(doc)

    entries = []
    for (package, text_class), (version, licence, copyright_sha) in meta.items():
        for split in ("train", "heldout"):
            mine = [d["text"].encode() for d in kept
                    if (d["source"], d["class"], d["split"]) == (package, text_class, split)]
            if mine:
                entries.append({"package": package, "version": version, "licence": licence, "copyright_sha256": copyright_sha,
                                "class": text_class, "split": split, "files": len(mine), "bytes": sum(map(len, mine)),
                                "sha256": hashlib.sha256(b"\0".join(mine)).hexdigest()})
    for text_class in ("prose", "code", "shell", "json"):
        for split in ("train", "heldout"):
            mine = [d for d in kept if d["class"] == text_class and d["split"] == split]
            with open(text_dir / f"{text_class}.{split}.jsonl", "w", encoding="utf-8") as f:
                for d in mine:
                    f.write(json.dumps({"source": d["source"], "group": d["group"], "text": d["text"]},
                                       ensure_ascii=False) + "\n")
            print(f"{text_class:6} {split:8} {len(mine):6} documents {sum(len(d['text'].encode()) for d in mine) / 1e6:7.2f} MB")
    args.manifest.parent.mkdir(parents=True, exist_ok=True)
    args.manifest.write_text(json.dumps({"distribution": "Debian 12 (bookworm)", "seed": SEED, "heldout_share": HELDOUT_SHARE,
                                         "sources": entries}, indent=1) + "\n")


if __name__ == "__main__":
    main()
