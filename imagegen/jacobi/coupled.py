"""Speculative coupled decoding and SJD-PAC: `SJD` with drafts that are coupled between rounds."""

from __future__ import annotations

from mmspec.imagegen.jacobi.initialisation import Init
from mmspec.imagegen.jacobi.jacobi_drafts import SJD, Coupling
from mmspec.imagegen.jacobi.tree import Proactive
from mmspec.methods import method


@method(
    "scd",
    domain=("image", "video"),
    kind="decoding",
    title="SCD",
    exact=True,
    about="coupled Jacobi decoding",
    paper="SCD: speculative coupled decoding",
    order=2,
    models=("codes",),
    usual=True,
    judged=True,
    couples=True,
)
def SCD(window: int = 32, coupling: Coupling = "gumbel", init: Init = "left", tree: Proactive | None = None) -> SJD:
    """`SJD` with coupled draws and a longer window: "SCD: speculative coupled decoding".

    Args:
        window: The number of values per pass, drafts and root.
        coupling: How drafts are coupled between rounds.
        init: The first draft of a position that no pass has scored yet; see `SJD`.
        tree: Siblings beside the first values, as DEPTHxWIDTH in text.
    """
    return SJD(window, init, coupling, tree)


_TREE = Proactive()


@method(
    "pac",
    domain=("image", "video"),
    kind="decoding",
    title="SJD-PAC",
    exact=True,
    about="coupled Jacobi decoding with siblings beside the first values",
    paper="SJD-PAC: Accelerating Speculative Jacobi Decoding via Proactive Drafting and Adaptive Continuation",
    order=3,
    models=("codes",),
)
def PAC(window: int = 64, coupling: Coupling = "maximal", init: Init = "left", tree: Proactive | None = _TREE) -> SJD:
    """`SJD` with maximal coupling and a tree.

    Args:
        window: The number of values per pass, drafts and root.
        coupling: How drafts are coupled between rounds.
        init: The first draft of a position that no pass has scored yet; see `SJD`.
        tree: Siblings beside the first values, as DEPTHxWIDTH in text.
    """
    return SJD(window, init, coupling, tree)
