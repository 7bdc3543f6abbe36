"""Old import paths: each still imports, says where things are now, and gives the very objects found there."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from mmspec._renamed import MODULES, NAMES, RenamedFinder, install
from tests.house.tree import ROOT, modules

# the public names of every module that moved, as it had them
MOVED = {
    "mmspec.core.drafting.alongside": "alongside",
    "mmspec.core.drafting.unread": "Pairs Unread",
    "mmspec.core.fields": "Config from_fields check_types",
    "mmspec.core.stopping": "Stopped end_before_work interrupts StopRequest stop_requests",
    "mmspec.core.windows": "Window window_of",
    "mmspec.imagegen.eagle.lesson": "Lesson lesson_of",
    "mmspec.imagegen.filling": "Module fill check_weights",
    "mmspec.imagegen.jacobi.cold": "Init INITS COPYING ONE_HOT REAL BLIND UPWARD Window Sources sources_of",
    "mmspec.imagegen.llamagen.infer": "gpt_fields null_rows resolution vq_fields",
    "mmspec.imagegen.llamagen.names": "FIELDS unwrap is_lantern from_lantern to_lantern",
    "mmspec.imagegen.multiscale.learned": "UpsamplerConfig RowCausal LatentUpsampler upsampler_loss",
    "mmspec.imagegen.own_order": "OwnOrder",
    "mmspec.imagegen.rules.published": "published_residual",
    "mmspec.imagegen.rules.turns": "Turn in_turn subtract",
    "mmspec.vlm.caller": "streamer_of_caller inputs_of_caller",
    "mmspec.vlm.drafters.acceptance_head": "AcceptanceConfig AcceptanceHead AcceptanceStop AcceptanceGrowth",
    "mmspec.vlm.drafters.block_state": "BlockState",
    "mmspec.vlm.drafters.compressors": "Compressor OneOfEach Prune Pool Conv LeaveOut exploring",
    "mmspec.vlm.drafters.context": "Context",
    "mmspec.vlm.drafters.elastic": "Fuse Compressed Gate Single Weigh Concatenate Select run no_more_than_all",
    "mmspec.vlm.drafters.guess": "Guess",
    "mmspec.vlm.drafters.latent_pool": "LatentPool",
    "mmspec.vlm.drafters.reading": "Reading pictures Spans",
    "mmspec.vlm.drafters.recycling_table": "RecyclingTable",
    "mmspec.vlm.drafters.reduced": "ReducedHead checked",
    "mmspec.vlm.drafters.resampler": "Resampler",
    "mmspec.vlm.drafters.sar_head": "SarConfig SarHead",
    "mmspec.vlm.drafters.sar_unroll": "unroll_blocks",
    "mmspec.vlm.drafters.templates": "HIT_RATES small_template paper_template",
    "mmspec.vlm.drafters.vision_adaptor": "VisionAdaptor absorbed",
    "mmspec.vlm.proof.words": "ordinary padding_id",
    "mmspec.vlm.published": "drafter_from_state_dict",
    "mmspec.vlm.published.eagle": "load",
    "mmspec.vlm.published.eagle3": "load",
    "mmspec.vlm.published.flash": "PREFIX FREQUENCIES load",
    "mmspec.vlm.published.hydra": "load",
    "mmspec.vlm.published.medusa": "load",
    "mmspec.vlm.published.msd": "load",
    "mmspec.vlm.published.specdecpp": "load",
    "mmspec.vlm.published.vispec": "QUERIES load",
    "mmspec.vlm.training.beginning": "begin with_words same_run processes",
    "mmspec.vlm.training.keeping": "STATE LOG Keeping",
    "mmspec.vlm.training.lesson": "Lesson lesson_of",
    "mmspec.vlm.training.stored": "Teaching StoredLessons check_sight",
    "mmspec.zoo.image_codes": "Codes write_codes read_codes own_codes",
    "mmspec.zoo.image_files": "write_transformer write_pipeline read_vq read_pipeline read_beside",
    "mmspec.zoo.lessons": "Pictures Texts HeldOut",
    "mmspec.zoo.registry": "WEIGHTS DRAFTERS LOADERS load_clip load_judge load_beside_t2i names folder_of load",
    "mmspec.zoo.vlm_files": "CHAT_TEMPLATE TextSize chat_prompt new_tokenizer new_processor new_model",
}

# modules that became packages: what they held is found at the same path, without a warning
STAYED = {
    "mmspec.vlm.drafters.eagle": "EagleConfig Eagle",
    "mmspec.vlm.drafters.eagle3": "MOST_TOKENS Eagle3Config levels_of Eagle3",
    "mmspec.vlm.drafters.flash": "FlashConfig Flash",
    "mmspec.vlm.drafters.hydra": "HydraConfig Entry Hydra HydraState PrefixState",
    "mmspec.vlm.drafters.medusa": "Medusa",
    "mmspec.vlm.drafters.msd": "Msd",
    "mmspec.vlm.drafters.vispec": "ViSpecConfig ViSpec",
    "mmspec.vlm.drafters.specvlm": "Branch Composition BRANCHES COMPOSITIONS SpecVlmConfig SpecVlm question",
    "mmspec.vlm.drafters.prompt_lookup": "PromptLookup NgramIndex LookupState",
    "mmspec.vlm.drafters.token_recycling": "TokenRecycling RecyclingState",
    "mmspec.vlm.drafters.small_model": "SmallModel SmallModelState",
    "mmspec.vlm.drafters.viskip": "VisionSkip VisionSkipState reliance",
}


def imported_afresh(name: str) -> object:
    """The module as its first import gives it."""
    for known in [known for known in sys.modules if known == name or name.startswith(f"{known}.") and known in MODULES]:
        del sys.modules[known]
    return import_module(name)


def test_every_old_path_is_written_down_here() -> None:
    assert sorted(MOVED) == sorted(MODULES) and set(NAMES) <= set(MODULES)


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_path_warns_and_gives_the_same_objects(old: str) -> None:
    new = MODULES[old]
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} from now on"):
        shim = imported_afresh(old)
    home = import_module(new)
    for name in MOVED[old].split():
        assert getattr(shim, name) is getattr(home, NAMES.get(old, {}).get(name, name))
    assert set(NAMES.get(old, {})) <= set(MOVED[old].split())
    with pytest.raises(AttributeError, match="nonsense"):
        shim.nonsense  # noqa: B018


@pytest.mark.parametrize("package", sorted(STAYED))
def test_a_module_that_became_a_package_holds_what_it_held(package: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        found = import_module(package)
    assert {name for name in STAYED[package].split() if not hasattr(found, name)} == set()
    assert set(STAYED[package].split()) - {"RecyclingTable"} <= set(found.__all__)


def test_old_paths_are_no_modules_any_more_and_new_ones_are() -> None:
    names = {name for name, _ in modules()}
    assert not names & set(MODULES) and set(MODULES.values()) <= names


def test_the_warning_points_at_the_line_that_imports() -> None:
    sys.modules.pop("mmspec.vlm.drafters.guess", None)
    with pytest.warns(DeprecationWarning) as told:
        from mmspec.vlm.drafters.guess import Guess
    assert told[0].filename == __file__ and Guess.__name__ == "Prediction"


def test_a_submodule_is_found_through_its_old_package() -> None:
    with pytest.warns(DeprecationWarning):
        imported_afresh("mmspec.vlm.published.eagle")
        from mmspec.vlm.published import drafter_from_state_dict, eagle

    import mmspec.vlm

    assert drafter_from_state_dict is mmspec.vlm.drafter_from_state_dict and callable(eagle.load)


def test_a_folder_left_behind_with_caches_does_not_hide_an_old_path(tmp_path: Path, monkeypatch) -> None:
    import mmspec.vlm

    (tmp_path / "published" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(mmspec.vlm, "__path__", [*mmspec.vlm.__path__, str(tmp_path)])
    with pytest.warns(DeprecationWarning):
        assert imported_afresh("mmspec.vlm.published").drafter_from_state_dict


def test_the_finder_is_installed_once_and_finds_nothing_else() -> None:
    install()
    assert sum(isinstance(finder, RenamedFinder) for finder in sys.meta_path) == 1
    assert RenamedFinder().find_spec("mmspec.vlm.api") is None and RenamedFinder().find_spec("mmspec.vlm") is None


def test_the_project_itself_uses_the_new_paths() -> None:
    """Sources, tests and pages; CHANGELOG holds the table of both."""
    folders = ("demos", "docs", "imagegen", "kernels", "mmspec", "tests", "video", "vlm")
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    files = [path for path in files if path.suffix in (".py", ".md", ".toml")]
    own = {"_renamed.py", "test_renamed.py", "CHANGELOG.md"}
    stale = {
        (path.relative_to(ROOT).as_posix(), old)
        for path in files
        if path.name not in own
        for old in MODULES
        if f"{old} import" in (text := path.read_text(encoding="utf-8")) or f'"{old}"' in text
    }
    assert stale == set()
