"""`python -m tests.vlm.classes --out FILE [--only REGEX]`: the whole table, one line per class as it goes."""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Iterator

import torch
import transformers

from mmspec.core.files import write_json_atomic
from tests.vlm.classes.table import class_names, record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="the JSON file to write")
    parser.add_argument("--only", default="", help="only classes whose name has this regular expression")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n interleaved parts of the classes")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    part, parts = map(int, options.part.split("/"))
    names = [name for name in class_names() if re.search(options.only, name)][part::parts]
    rows = {}
    for number, name in enumerate(names, 1):
        rows[name] = record(name)
        counts = Counter(text.split(":")[0] for text in outcomes(rows[name]))
        print(f"{number}/{len(names)} {name}: {dict(counts)}", flush=True)
    write_json_atomic(options.out, {"transformers": transformers.__version__, "classes": dict(sorted(rows.items()))})


def outcomes(found: dict | str) -> Iterator[str]:
    """Every outcome in a class's record."""
    if isinstance(found, str):
        yield found
    else:
        for key, value in found.items():
            yield from ("unbuilt",) if key == "unbuilt" else outcomes(value)


main()
