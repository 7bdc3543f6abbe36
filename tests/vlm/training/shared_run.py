"""Run by torchrun: one training by all processes. Arguments: the folder of the run, and which process has nothing to learn."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.vlm.training.test_two_processes import run

run(Path(sys.argv[1]), parts=int(os.environ["WORLD_SIZE"]), idle=int(sys.argv[2]))
