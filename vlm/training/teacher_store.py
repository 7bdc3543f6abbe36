"""Teacher batches on disk: the target runs once, a drafter trains on what it said as often as wanted."""

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
    """Teacher batches kept in a folder, one safetensors file each, named by a number.

    States are stored in half precision, float16 unless they do not fit it (then bfloat16), and read back as float32.
    Embeddings that are the table's own rows, as those of texts are, are not stored but looked up again.

    Attributes:
        folder: The folder of the files.
        embed: The target's embedding; None stores all embeddings.
    """

    folder: Path
    embed: nn.Module | None = None

    def __call__(self, number: int) -> VlmTeacherBatch:
        """The batch of this number.   Raises ValueError where it is not stored or its file is damaged."""
        path = self.path(number)
        found = read_tensors(path)
        missing = _NEEDED - set(found) or ("embeds" not in found and self.embed is None)
        if missing or len({value.shape[:2] for value in found.values()}) != 1 or found["ids"].dim() != 2:
            shapes = {name: tuple(value.shape) for name, value in found.items()}
            raise ValueError(
                f"{path}: expected a stored teacher batch, got {shapes}; delete it, and it is stored again"
            )
        last = found["last"].float()
        hidden = found["hidden"].float() if "hidden" in found else last
        embeds = found["embeds"] if "embeds" in found else self._table_rows(found["ids"])
        return VlmTeacherBatch(found["ids"], found["answer"], embeds.float(), last, hidden, found.get("padding"))

    @torch.no_grad()
    def _table_rows(self, ids: Tensor) -> Tensor:
        return self.embed(ids.to(next(self.embed.parameters()).device)).cpu()

    def write(self, number: int, batch: VlmTeacherBatch) -> None:
        """Stores a batch, whole or not at all."""
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
        """Stores the batches that are not there yet, so that a store cut short is completed; returns how many were made.

        on_batch: told every number, in order, when its batch is there.
        Raises Stopped where SIGINT or SIGTERM came, behind the running batch.
        """
        made = 0
        with stop_requests() as request:
            for number in numbers:
                if not self.path(number).exists():
                    self.write(number, make(number))
                    made += 1
                on_batch(number)
                if request.signal:
                    raise Stopped(
                        f"the teacher batches stored so far ({len(self.numbers)}) are kept in {self.folder}",
                        request.signal,
                    )
        return made

    def path(self, number: int) -> Path:
        """The file of a batch."""
        return self.folder / f"{number:07d}.safetensors"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Which teacher batches are there."""
        return tuple(sorted(int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")))

    @property
    def megabytes(self) -> float:
        """What they take on disk."""
        return sum(self.path(number).stat().st_size for number in self.numbers) / 1e6


def batches_of_steps(
    teacher: TeacherFunction, batches: Batches, store: TeacherStore | None, on_batch: Callable[[int, int], None]
) -> Callable[[int], VlmTeacherBatch]:
    """The teacher batch of a step.

    Args:
        teacher: Runs the target over examples.
        batches: The examples of every step.
        store: Filled here with all batches; None runs the target at every step.
        on_batch: Called with the number of stored batches and of all.
    """
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
    """Makes sure that the states a drafter learns from depend on the pictures: those of the first example with a picture
    and of the same with its pictures as negatives must differ at the answer.

    Raises ValueError where they do not: the target never saw the picture.
    """
    shown = next((example for example in examples if example.images), None)
    if shown is None:
        return
    images = tuple(ImageOps.invert(image.convert("RGB")) for image in shown.images)
    negative = Example(shown.key, shown.text, images, shown.answer)
    seen, other = teach([shown]), teach([negative])
    if torch.equal(seen.last[seen.answer], other.last[other.answer]):
        raise ValueError(
            f"target: expected states that change with the picture of {shown.key!r}, got the same for its negative; "
            "check that the processor hands the pixels to the model"
        )
