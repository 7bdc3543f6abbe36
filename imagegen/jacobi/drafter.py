"""Speculative Jacobi decoding, plain and coupled, as a drafter of the round loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from mmspec.core.arguments import check_fields
from mmspec.imagegen.jacobi.coupling import Coupling
from mmspec.imagegen.jacobi.initialisation import INITS, Init
from mmspec.imagegen.jacobi.state import JacobiState
from mmspec.imagegen.jacobi.tree import Proactive
from mmspec.imagegen.target import ImageTarget


@dataclass(frozen=True, slots=True)
class SJD:
    """Drafts every position of a window from the target's own law there, as the last round scored it. Needs no training;
    exact under every exact rule for its kind of draft.

    "Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding". Each round
    scores the last committed value and window - 1 drafts in one pass, accepts a prefix, and draws the positions behind it
    again from the laws this pass gave them, which are kept as their q. Rows advance independently; the public code commits
    the minimum over the batch, and passes the residual through top-k a second time, which this does not.

    window: values per pass, the drafts and the root.
    coupling: None draws anew. "maximal" and "gumbel" keep a value through the rounds as often as its law allows ("SCD:
        speculative coupled decoding": `maximal_law`, `gumbel_pick`), so that the contexts of later positions settle. What
        counts as the law of every value in the window is the newest one. The public maximal samplers for Lumina and Janus
        leave the old law with values that survived: with those two mixed, images do not have the target's law.
        Gumbel noise belongs to a position and stays; the value after a rejection never reads it.
        Coupled drafts take rules that judge from the root down (token-wise, recursive rejection, K-SEQ).
    init: the first draft of a position that no pass has scored yet.
        "random": any code, as the published default of coupled decoding; q is one-hot at it.
        "uniform": any code, with q uniform.
        "repeat_left", "repeat_up", "repeat_frame": the newest value of the neighbour to the left, above, or in the same
            place of the frame before; q is one-hot. A random code where there is no neighbour. The neighbour to the left is
            the newest value known, of the row above too, but at the start of a row.
        "sample_left", "sample_up", "sample_frame": the first two named so in the paper; the most likely value of the
            neighbour's newest law, as in the public code. q is one-hot. A random code where there is no neighbour.
        "left": drawn from the newest law before it in raster order, kept as q.   "up": from the law of the cell above,
            "frame": from that of the cell in the frame before; both as "left" where there is none.   "mix": from the average
            of the laws of "left" and "up".
        The laws of a whole frame are kept for "frame" and "sample_frame": frame * V numbers a row.
    tree: siblings beside the first values, see `Proactive`.
    A forced position is drafted as what it is forced to be. Raises ValueError for unknown settings.
    """

    window: int = 16
    init: Init = "left"
    coupling: Coupling | None = None
    tree: Proactive | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.window < 2:
            raise ValueError(f"window: expected 2 or more, got {self.window}; use decoding=None to draft nothing")
        if self.init not in INITS:
            raise ValueError(f"init: expected one of {', '.join(INITS)}, got {self.init!r}; name one of them")
        if self.coupling not in (None, *get_args(Coupling)):
            raise ValueError(f"coupling: expected None, 'maximal' or 'gumbel', got {self.coupling!r}; name one of them")
        if not isinstance(self.tree, Proactive | None):
            raise ValueError(
                f"tree: expected None or a Proactive, got {type(self.tree).__name__}; pass Proactive(3, 4)"
            )

    @property
    def name(self) -> str:
        """What tables print: "SJD(16)", "SCD gumbel(32)", with the init where it is not "left", and the tree."""
        method = "SJD" if self.coupling is None else f"SCD {self.coupling}"
        init = "" if self.init == "left" else f" {self.init}"
        tree = "" if self.tree is None else f" + tree {self.tree.depth}x{self.tree.width}"
        return f"{method}({self.window}){init}{tree}"

    def open(self, target: ImageTarget) -> JacobiState:
        """State for one request."""
        return JacobiState(self, target)


def SCD(
    window: int = 32, coupling: Coupling = "gumbel", init: Init = "left", tree: Proactive | None = None
) -> SJD:  # fmt: skip
    """`SJD` with coupled draws and a longer window: "SCD: speculative coupled decoding"."""
    return SJD(window, init, coupling, tree)
