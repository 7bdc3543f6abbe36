"""Teacher batches on disk: the target runs once, and a drafter can train on its states many times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import ImageOps
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.io.files import replacing
from mmspec.io.interrupts import Stopped, stop_requests
from mmspec.io.readers import read_tensors
from mmspec.vlm.training.data import Batches
from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.teacher import VlmTeacherBatch

_NEEDED = {"ids", "answer", "last"}
TeacherFunction = Callable[[Sequence[Example]], VlmTeacherBatch]


@dataclass(frozen=True, slots=True)
class TeacherStore:
    """Teacher batches in a folder, each in a numbered safetensors file. States are stored in float16, or in bfloat16 if
    they exceed its range, and read as float32. Embeddings that equal rows of the table `embed`, as those of text do,
    are looked up again instead of stored; None stores all."""

    folder: Path
    embed: nn.Module | None = None

    def __call__(self, number: int) -> VlmTeacherBatch:
        path = self.path(number)
        tensors = read_tensors(path)
        missing = _NEEDED - set(tensors) or ("embeds" not in tensors and self.embed is None)
        if missing or len({value.shape[:2] for value in tensors.values()}) != 1 or tensors["ids"].dim() != 2:
            shapes = {name: tuple(value.shape) for name, value in tensors.items()}
            raise ValueError(
                f"{path}: expected a stored teacher batch, got {shapes}; delete the file, so that it is stored again"
            )
        ids, last = tensors["ids"], tensors["last"].float()
        hidden = tensors["hidden"].float() if "hidden" in tensors else last
        embeds = tensors["embeds"] if "embeds" in tensors else self._table_rows(ids)
        return VlmTeacherBatch(ids, tensors["answer"], embeds.float(), last, hidden, tensors.get("padding"))

    @torch.no_grad()
    def _table_rows(self, ids: Tensor) -> Tensor:
        return self.embed(ids.to(next(self.embed.parameters()).device)).cpu()

    def write(self, number: int, batch: VlmTeacherBatch) -> None:
        """Store a batch atomically."""
        tensors = {"ids": batch.ids, "answer": batch.answer, "last": _half(batch.last)}
        if self.embed is None or not torch.equal(self._table_rows(batch.ids), batch.embeds.cpu()):
            tensors["embeds"] = _half(batch.embeds)
        if batch.hidden is not batch.last:
            tensors["hidden"] = _half(batch.hidden)
        if batch.padding is not None:
            tensors["padding"] = batch.padding
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.path(number)) as path:
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path)

    def store(
        self,
        numbers: Iterable[int],
        make: Callable[[int], VlmTeacherBatch],
        on_batch: Callable[[int], None] = lambda n: None,
    ) -> int:
        """Store the batches that are missing, so that an interrupted store is completed, and return how many were new.
        `on_batch` gets every number, in order. SIGINT or SIGTERM stops after the running batch."""
        created = 0
        with stop_requests() as request:
            for number in numbers:
                if not self.path(number).exists():
                    self.write(number, make(number))
                    created += 1
                on_batch(number)
                if request.signal:
                    raise Stopped(
                        f"the teacher batches stored so far ({len(self.numbers)}) are kept in {self.folder}",
                        request.signal,
                    )
        return created

    def path(self, number: int) -> Path:
        return self.folder / f"{number:07d}.safetensors"

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")))

    @property
    def megabytes(self) -> float:
        """On disk."""
        return sum(self.path(number).stat().st_size for number in self.numbers) / 1e6


def batches_of_steps(
    teacher: TeacherFunction, batches: Batches, store: TeacherStore | None, on_batch: Callable[[int, int], None]
) -> Callable[[int], VlmTeacherBatch]:
    """Return a function from a step to its teacher batch. The store is filled here with all batches, and `on_batch`
    gets the number of stored batches and the total; None runs the target at every step."""
    if store is None:
        return lambda step: teacher(batches[batches.number(step)])
    needed = batches.needed
    done = iter(range(1, len(needed) + 1))
    store.store(needed, lambda number: teacher(batches[number]), lambda number: on_batch(next(done), len(needed)))
    return lambda step: store(batches.number(step))


def _half(states: Tensor) -> Tensor:
    half = states.half()
    return half if bool(half.isfinite().all()) or not bool(states.isfinite().all()) else states.bfloat16()


@torch.no_grad()
def check_image_dependence(teach: TeacherFunction, examples: Sequence[Example]) -> None:
    """Check that the target's states depend on the pictures: those of the answer must differ between the first example
    with pictures and a copy whose pictures are inverted."""
    shown = next((example for example in examples if example.images), None)
    if shown is None:
        return
    images = tuple(ImageOps.invert(image) for image in shown.images)
    negative = Example(shown.key, shown.text, images, shown.answer)
    seen, other = teach([shown]), teach([negative])
    if torch.equal(seen.last[seen.answer], other.last[other.answer]):
        raise ValueError(
            f"target: expected states that change with the picture of {shown.key!r}, got equal states for its negative; "
            "check that the processor passes the pixels to the model"
        )
