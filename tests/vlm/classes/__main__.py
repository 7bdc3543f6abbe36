"""`python -m tests.vlm.classes --out FILE`: the whole table, one line per class as it goes.

--only REGEX makes the classes whose name has it again and keeps the others of the existing files.
--ship FILE also writes what `mmspec supported` shows of it.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter
from pathlib import Path

import torch
import transformers

from mmspec.io.files import write_json_atomic
from mmspec.io.readers import read_json
from mmspec.kernels.small_linear import pinned_form
from tests.vlm.classes.summary import outcomes, summary
from tests.vlm.classes.table import class_names, record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--ship", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = _kept(options.out) if options.only else {}
    names = [name for name in class_names() if re.search(options.only, name)]
    for number, name in enumerate(names, 1):
        rows[name] = record(name)
        counts = Counter(text.partition(":")[0] for text in outcomes(rows[name]))
        print(f"{number}/{len(names)} {name}: {dict(counts)}", flush=True)
    _write(options.out, rows)
    if options.ship:
        kept = _kept(options.ship) if options.only else {}
        _write(options.ship, kept | {name: summary(found) for name, found in rows.items()})
    unbuilt = [name for name, found in rows.items() if "unbuilt" in found]
    print(f"{len(rows)} classes, {len(unbuilt)} not built: {', '.join(unbuilt)}")


def _kept(file: Path) -> dict:
    return read_json(file)["classes"] if file.is_file() else {}


def _write(file: Path, rows: dict) -> None:
    write_json_atomic(file, {"transformers": transformers.__version__, "classes": dict(sorted(rows.items()))})


with pinned_form("transposed"):  # bits must not depend on times
    main()
