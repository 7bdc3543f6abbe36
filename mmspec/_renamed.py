"""Old import paths, for one version: each still gives what it gave, with a DeprecationWarning that says the new one."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_DRAFTERS = "mmspec.vlm.drafters"
_PUBLISHED = ("eagle", "eagle3", "flash", "hydra", "medusa", "msd", "specdecpp", "vispec")

# old module -> new module
MODULES = {
    "mmspec.core.drafting.alongside": "mmspec.core.drafting.placement",
    "mmspec.core.drafting.unread": "mmspec.core.drafting.pending_features",
    "mmspec.core.fields": "mmspec.core.config_fields",
    "mmspec.core.stopping": "mmspec.core.interrupts",
    "mmspec.core.windows": "mmspec.core.attention_windows",
    "mmspec.imagegen.eagle.lesson": "mmspec.imagegen.eagle.teacher_pass",
    "mmspec.imagegen.filling": "mmspec.core.filling",
    "mmspec.imagegen.jacobi.cold": "mmspec.imagegen.jacobi.initialisation",
    "mmspec.imagegen.llamagen.infer": "mmspec.imagegen.llamagen.config_from_weights",
    "mmspec.imagegen.llamagen.names": "mmspec.imagegen.llamagen.state_dict_keys",
    "mmspec.imagegen.multiscale.learned": "mmspec.imagegen.multiscale.latent_upsampler",
    "mmspec.imagegen.own_order": "mmspec.imagegen.non_raster",
    "mmspec.imagegen.rules.published": "mmspec.imagegen.rules.lantern_residual",
    "mmspec.imagegen.rules.turns": "mmspec.imagegen.rules.siblingwise",
    "mmspec.vlm.caller": "mmspec.vlm.generate_call",
    f"{_DRAFTERS}.acceptance_head": f"{_DRAFTERS}.specdecpp",
    f"{_DRAFTERS}.block_state": f"{_DRAFTERS}.flash.state",
    f"{_DRAFTERS}.compressors": f"{_DRAFTERS}.specvlm.modules",
    f"{_DRAFTERS}.context": f"{_DRAFTERS}.small_model.context",
    f"{_DRAFTERS}.elastic": f"{_DRAFTERS}.specvlm.elastic",
    f"{_DRAFTERS}.guess": f"{_DRAFTERS}.prediction",
    f"{_DRAFTERS}.latent_pool": f"{_DRAFTERS}.flash.modules",
    f"{_DRAFTERS}.reading": f"{_DRAFTERS}.prompt_view",
    f"{_DRAFTERS}.recycling_table": f"{_DRAFTERS}.token_recycling.table",
    f"{_DRAFTERS}.reduced": f"{_DRAFTERS}.eagle3.modules",
    f"{_DRAFTERS}.resampler": f"{_DRAFTERS}.specvlm.modules",
    f"{_DRAFTERS}.sar_head": f"{_DRAFTERS}.flash.modules",
    f"{_DRAFTERS}.sar_unroll": f"{_DRAFTERS}.flash.unroll",
    f"{_DRAFTERS}.templates": f"{_DRAFTERS}.token_recycling.templates",
    f"{_DRAFTERS}.vision_adaptor": f"{_DRAFTERS}.vispec.modules",
    "mmspec.vlm.proof.words": "mmspec.vlm.proof.ordinary_tokens",
    "mmspec.vlm.published": f"{_DRAFTERS}.published",
    **{f"mmspec.vlm.published.{family}": f"{_DRAFTERS}.{family}.published" for family in _PUBLISHED},
    "mmspec.vlm.training.beginning": "mmspec.vlm.training.run_setup",
    "mmspec.vlm.training.keeping": "mmspec.vlm.training.run_state",
    "mmspec.vlm.training.lesson": "mmspec.vlm.training.teacher_pass",
    "mmspec.vlm.training.stored": "mmspec.vlm.training.teacher_store",
    "mmspec.zoo.image_codes": "mmspec.zoo.files.image_codes",
    "mmspec.zoo.image_files": "mmspec.zoo.files.llamagen",
    "mmspec.zoo.lessons": "mmspec.zoo.training.texts.drafter_requests",
    "mmspec.zoo.registry": "mmspec.zoo.files.registry",
    "mmspec.zoo.vlm_files": "mmspec.zoo.architectures.llava",
}

# of an old module: its old names -> their new names in the new module; all others are what they were
NAMES = {
    "mmspec.core.drafting.unread": {"Unread": "PendingFeatures"},
    "mmspec.imagegen.eagle.lesson": {"Lesson": "TeacherBatch", "lesson_of": "teacher_pass"},
    "mmspec.imagegen.own_order": {"OwnOrder": "NonRasterOrder"},
    "mmspec.imagegen.rules.turns": {"Turn": "Siblings", "in_turn": "siblingwise"},
    "mmspec.vlm.caller": {"streamer_of_caller": "streamer_of_call", "inputs_of_caller": "inputs_of_call"},
    f"{_DRAFTERS}.guess": {"Guess": "Prediction"},
    f"{_DRAFTERS}.reading": {"Reading": "PromptView"},
    "mmspec.vlm.training.beginning": {"begin": "initial_drafter", "with_words": "fit_vocabulary"},
    "mmspec.vlm.training.keeping": {"Keeping": "RunState"},
    "mmspec.vlm.training.lesson": {"Lesson": "TeacherBatch", "lesson_of": "teacher_pass"},
    "mmspec.vlm.training.stored": {"StoredLessons": "TeacherStore"},
    "mmspec.zoo.image_files": {"read_beside": "read_with_shared_tokenizer"},
    "mmspec.zoo.registry": {"load_beside_t2i": "load_with_t2i_tokenizer"},
}


class RenamedFinder(MetaPathFinder, Loader):
    """Finds the old modules of the table; each hands out the attributes of the new one."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        holds_others = any(old.startswith(f"{fullname}.") for old in MODULES)
        return ModuleSpec(fullname, self, is_package=holds_others)

    def exec_module(self, module: ModuleType) -> None:
        old, new = module.__name__, MODULES[module.__name__]
        told = f"{old} is {new} from now on; import it from there, the old path goes with the next version"
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        found, names = import_module(new), NAMES.get(old, {})
        module.__doc__ = f"The old path of `{new}`."
        module.__getattr__ = lambda name: getattr(found, names.get(name, name))


def install() -> None:
    """Puts the finder in front: a folder that held old modules may have stayed behind with nothing but caches."""
    if not any(isinstance(finder, RenamedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, RenamedFinder())
