"""Published drafters by the model that they draft for, as their publishers describe them. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

MOST_PADDING = 1024  # the most rows that publishers add behind a vocabulary


@dataclass(frozen=True, slots=True)
class PublishedDrafter:
    repo: str  # the id of the repository
    target: str  # the id of the model that it drafts for
    kind: str  # its name in `mmspec methods`
    licence: str = ""  # on its card; "" where no card was read
    size: str = ""  # parameters by its publishers; "" where they do not state it
    hidden_size: int = 0  # of its target by its public config; 0 where none was read
    vocab_size: int = 0  # likewise
    read: str = ""  # public file "owner/name:path" that holds or quotes its config; "": layout assumed

    def __str__(self) -> str:
        return self.repo if self.read else f"{self.repo} (layout assumed)"

    @property
    def layout(self) -> str:
        return LAYOUTS[self.repo.partition("/")[0]]

    def misfit(self, hidden_size: int, vocab_size: int) -> str:
        """Return the known differences from a model of these sizes as text; "" without a difference."""
        sizes = {"hidden_size": self.hidden_size, "vocab_size": self.vocab_size}
        return size_misfit(sizes, hidden_size, vocab_size)


# The layout of a publisher's files: the trainer or the library that writes their config and names their tensors.
LAYOUTS = {
    "AngelSlim": "AngelSlim",
    "JLKang": "ViSpec",
    "RedHatAI": "speculators",
    "deepseek-ai": "DeepSpec",
    "google": "transformers",
    "lucylyn": "MSD",
    "nvidia": "ModelOpt",
    "taobao-mnn": "SpecForge",
    "yuhuili": "SafeAILab",
    "z-lab": "z-lab",
}

_NVIDIA = "nvidia-open-model-license"
_ANGELSLIM = "Tencent/AngelSlim:angelslim/compressor/speculative/train/configs/"
_CONVERTED = "vllm-project/speculators:examples/convert/eagle3/apply_eagle3_llama4_maverick.sh"
_DEEPSPEC = "deepseek-ai/DeepSpec:config/"
_EAGLE = "SafeAILab/EAGLE:eagle/train/"
_MSD = "Lyn-Lucy/MSD:EAGLE/eagle/train/"
_SPECFORGE = "sgl-project/SpecForge:configs/"
_TRANSFORMERS = "huggingface/transformers:src/transformers/models/gemma4_assistant/configuration_gemma4_assistant.py"
_VISPEC = "KangJialiang/ViSpec:vispec/train/"

# In the order of preference: of several drafters in the cache, the first that fits is used.
PUBLISHED = (
    PublishedDrafter("JLKang/ViSpec-Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct", "vispec", hidden_size=2048,
                     vocab_size=151936, read=_VISPEC + "qwen2.5_vl_3B_config.json"),
    PublishedDrafter("JLKang/ViSpec-Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct", "vispec", hidden_size=3584,
                     vocab_size=152064, read=_VISPEC + "qwen2.5_vl_7B_config.json"),
    PublishedDrafter("JLKang/ViSpec-llava-v1.6-vicuna-7b-hf", "llava-hf/llava-v1.6-vicuna-7b-hf", "vispec",
                     hidden_size=4096, vocab_size=32064, read=_VISPEC + "llava_1.6_7B_config.json"),
    PublishedDrafter("JLKang/ViSpec-llava-v1.6-vicuna-13b-hf", "llava-hf/llava-v1.6-vicuna-13b-hf", "vispec",
                     hidden_size=5120, vocab_size=32064, read=_VISPEC + "llava_1.6_13B_config.json"),
    PublishedDrafter("lucylyn/MSD-LLaVA1.5-7B", "llava-hf/llava-1.5-7b-hf", "msd", hidden_size=4096, vocab_size=32000,
                     read=_MSD + "llava_v15_7B_config.json"),
    PublishedDrafter("lucylyn/MSD-LLaVA1.5-13B", "llava-hf/llava-1.5-13b-hf", "msd", hidden_size=5120, vocab_size=32000,
                     read=_MSD + "llava_v15_13B_config.json"),
    PublishedDrafter("lucylyn/MSD-Qwen2VL-7B-Instruct", "Qwen/Qwen2-VL-7B-Instruct", "msd", hidden_size=3584,
                     vocab_size=152064, read=_MSD + "qwen2vl_config.json"),
    PublishedDrafter("JLKang/ViSpec-llava-1.5-7b-hf", "llava-hf/llava-1.5-7b-hf", "vispec"),
    PublishedDrafter("AngelSlim/Qwen3-VL-2B-Instruct_eagle3", "Qwen/Qwen3-VL-2B-Instruct", "eagle3",
                     read=_ANGELSLIM + "qwen3-vl-2b-eagle3-mrope.json"),
    PublishedDrafter("AngelSlim/Qwen3-VL-4B-Instruct_eagle3", "Qwen/Qwen3-VL-4B-Instruct", "eagle3",
                     read=_ANGELSLIM + "qwen3-vl-4b-eagle3-mrope.json"),
    PublishedDrafter("AngelSlim/Qwen3-VL-30B-A3B-Instruct_eagle3", "Qwen/Qwen3-VL-30B-A3B-Instruct", "eagle3",
                     read=_ANGELSLIM + "qwen3-vl-30b-a3b-eagle3-mrope.json"),
    PublishedDrafter("AngelSlim/HunyuanOCR_eagle3", "tencent/HunyuanOCR", "eagle3",
                     read=_ANGELSLIM + "hunyuan_ocr-eagle3.json"),
    PublishedDrafter("taobao-mnn/Qwen3-VL-2B-Instruct-Eagle3", "Qwen/Qwen3-VL-2B-Instruct", "eagle3", "apache-2.0"),
    PublishedDrafter("taobao-mnn/Qwen3-VL-4B-Thinking-Eagle3", "Qwen/Qwen3-VL-4B-Thinking", "eagle3"),
    PublishedDrafter("z-lab/Qwen3-4B-DFlash-b16", "Qwen/Qwen3-4B", "dflash", read=_SPECFORGE + "qwen3-4b-dflash.json"),
    PublishedDrafter("z-lab/Qwen3-8B-DFlash-b16", "Qwen/Qwen3-8B", "dflash", hidden_size=4096, vocab_size=151936,
                     read=_SPECFORGE + "qwen3-8b-dflash.json"),
    PublishedDrafter("z-lab/Qwen3-Coder-30B-A3B-DFlash", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "dflash"),
    PublishedDrafter("z-lab/Qwen3-Coder-Next-DFlash", "Qwen/Qwen3-Coder-Next", "dflash"),
    PublishedDrafter("z-lab/Qwen3.5-4B-DFlash", "Qwen/Qwen3.5-4B", "dflash", hidden_size=2560, vocab_size=248320,
                     read=_SPECFORGE + "qwen3.5-4b-dflash.json"),
    PublishedDrafter("z-lab/Qwen3.5-9B-DFlash", "Qwen/Qwen3.5-9B", "dflash"),
    PublishedDrafter("z-lab/Qwen3.5-27B-DFlash", "Qwen/Qwen3.5-27B", "dflash",
                     read="z-lab/Qwen3.5-27B-DFlash:config.json"),
    PublishedDrafter("z-lab/Qwen3.5-35B-A3B-DFlash", "Qwen/Qwen3.5-35B-A3B", "dflash", hidden_size=2048,
                     vocab_size=248320, read=_SPECFORGE + "qwen3.5-35b-a3b-dflash.json"),
    PublishedDrafter("z-lab/Qwen3.5-122B-A10B-DFlash", "Qwen/Qwen3.5-122B-A10B", "dflash"),
    PublishedDrafter("z-lab/Qwen3.6-27B-DFlash", "Qwen/Qwen3.6-27B", "dflash", hidden_size=5120, vocab_size=248320,
                     read=_SPECFORGE + "qwen3.6-27b-dflash.json"),
    PublishedDrafter("z-lab/Qwen3.6-35B-A3B-DFlash", "Qwen/Qwen3.6-35B-A3B", "dflash",
                     read="z-lab/Qwen3.6-35B-A3B-DFlash:config.json"),
    PublishedDrafter("z-lab/Kimi-K2.5-DFlash", "moonshotai/Kimi-K2.5", "dflash"),
    PublishedDrafter("z-lab/gpt-oss-20b-DFlash", "openai/gpt-oss-20b", "dflash",
                     read="z-lab/gpt-oss-20b-DFlash:config.json"),
    PublishedDrafter("z-lab/gpt-oss-120b-DFlash", "openai/gpt-oss-120b", "dflash"),
    PublishedDrafter("google/gemma-4-E2B-it-assistant", "google/gemma-4-E2B-it", "gemma4_assistant",
                     read=_TRANSFORMERS),
    PublishedDrafter("google/gemma-4-E4B-it-assistant", "google/gemma-4-E4B-it", "gemma4_assistant",
                     read=_TRANSFORMERS),
    PublishedDrafter("google/gemma-4-12B-it-assistant", "google/gemma-4-12B-it", "gemma4_assistant",
                     read=_TRANSFORMERS),
    PublishedDrafter("google/gemma-4-26B-A4B-it-assistant", "google/gemma-4-26B-A4B-it", "gemma4_assistant",
                     read=_TRANSFORMERS),
    PublishedDrafter("google/gemma-4-31B-it-assistant", "google/gemma-4-31B-it", "gemma4_assistant",
                     read=_TRANSFORMERS),
    PublishedDrafter("z-lab/gemma-4-26B-A4B-it-DFlash", "google/gemma-4-26B-A4B-it", "dflash"),
    PublishedDrafter("z-lab/gemma-4-31B-it-DFlash", "google/gemma-4-31B-it", "dflash",
                     read="docs.rs/memra-engine:dflash.rs"),
    PublishedDrafter("RedHatAI/gemma-4-31B-it-speculator.dflash", "google/gemma-4-31B-it", "dflash",
                     read="shanjiaz/gemma4-dflash-speculator-fp8-block:README.md"),
    PublishedDrafter("RedHatAI/gemma-4-31B-it-speculator.eagle3", "google/gemma-4-31B-it", "eagle3",
                     read="RedHatAI/gemma-4-31B-it-speculator.eagle3:config.json"),
    PublishedDrafter("z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", "meta-llama/Llama-3.1-8B-Instruct", "dflash"),
    PublishedDrafter("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "meta-llama/Llama-3.1-8B-Instruct", "eagle3",
                     hidden_size=4096, vocab_size=128256, read="SafeAILab/EAGLE:eagle/traineagle3/config.json"),
    PublishedDrafter("RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", "meta-llama/Llama-3.1-8B-Instruct", "eagle3",
                     read="RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3:config.json"),
    PublishedDrafter("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "meta-llama/Llama-3.3-70B-Instruct", "eagle3"),
    PublishedDrafter("RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3", "meta-llama/Llama-3.3-70B-Instruct",
                     "eagle3"),
    PublishedDrafter("yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
                     "eagle3"),
    PublishedDrafter("nvidia/Llama-4-Maverick-17B-128E-Eagle3", "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
                     "eagle3", read=_CONVERTED),
    PublishedDrafter("RedHatAI/Llama4-Maverick-17B-128E-Instruct-speculator.eagle3",
                     "meta-llama/Llama-4-Maverick-17B-128E-Instruct", "eagle3", _NVIDIA, read=_CONVERTED),
    PublishedDrafter("RedHatAI/Qwen3-8B-speculator.eagle3", "Qwen/Qwen3-8B", "eagle3"),
    PublishedDrafter("RedHatAI/Qwen3-14B-speculator.eagle3", "Qwen/Qwen3-14B", "eagle3"),
    PublishedDrafter("RedHatAI/Qwen3-32B-speculator.eagle3", "Qwen/Qwen3-32B", "eagle3"),
    PublishedDrafter("RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3", "Qwen/Qwen3-30B-A3B-Instruct-2507",
                     "eagle3"),
    PublishedDrafter("RedHatAI/Qwen3-235B-A22B-Instruct-2507-speculator.eagle3", "Qwen/Qwen3-235B-A22B-Instruct-2507",
                     "eagle3"),
    PublishedDrafter("RedHatAI/Qwen3-235B-A22B-speculator.eagle3", "Qwen/Qwen3-235B-A22B", "eagle3"),
    PublishedDrafter("nvidia/Qwen3-235B-A22B-Eagle3", "Qwen/Qwen3-235B-A22B", "eagle3"),
    PublishedDrafter("AngelSlim/Qwen3-1.7B_eagle3", "Qwen/Qwen3-1.7B", "eagle3",
                     read=_ANGELSLIM + "qwen3-1.7b-eagle3.json"),
    PublishedDrafter("AngelSlim/Qwen3-4B_eagle3", "Qwen/Qwen3-4B", "eagle3", read=_ANGELSLIM + "qwen3-4b-eagle3.json"),
    PublishedDrafter("AngelSlim/Qwen3-8B_eagle3", "Qwen/Qwen3-8B", "eagle3", read=_ANGELSLIM + "qwen3-8b-eagle3.json"),
    PublishedDrafter("AngelSlim/Qwen3-14B_eagle3", "Qwen/Qwen3-14B", "eagle3",
                     read=_ANGELSLIM + "qwen3-14b-eagle3.json"),
    PublishedDrafter("AngelSlim/Qwen3-32B_eagle3", "Qwen/Qwen3-32B", "eagle3",
                     read=_ANGELSLIM + "qwen3-32b-eagle3.json"),
    PublishedDrafter("AngelSlim/Qwen3-a3B_eagle3", "Qwen/Qwen3-30B-A3B", "eagle3",
                     read=_ANGELSLIM + "qwen3-30b-a3b-eagle3.json"),
    PublishedDrafter("RedHatAI/gpt-oss-20b-speculator.eagle3", "openai/gpt-oss-20b", "eagle3",
                     read="RedHatAI/gpt-oss-20b-speculator.eagle3:config.json"),
    PublishedDrafter("nvidia/gpt-oss-120b-Eagle3", "openai/gpt-oss-120b", "eagle3", _NVIDIA,
                     read="sgl-project/sglang:pull/9739"),
    PublishedDrafter("yuhuili/EAGLE3-Vicuna1.3-13B", "lmsys/vicuna-13b-v1.3", "eagle3"),
    PublishedDrafter("yuhuili/EAGLE-Vicuna-7B-v1.3", "lmsys/vicuna-7b-v1.3", "eagle", size="0.24B", hidden_size=4096,
                     vocab_size=32000, read=_EAGLE + "vicuna_7B_config.json"),
    PublishedDrafter("yuhuili/EAGLE-Vicuna-13B-v1.3", "lmsys/vicuna-13b-v1.3", "eagle", size="0.37B",
                     read=_EAGLE + "vicuna_13B_config.json"),
    PublishedDrafter("yuhuili/EAGLE-Vicuna-33B-v1.3", "lmsys/vicuna-33b-v1.3", "eagle", size="0.56B",
                     read=_EAGLE + "vicuna_33B_config.json"),
    PublishedDrafter("yuhuili/EAGLE-llama2-chat-7B", "meta-llama/Llama-2-7b-chat-hf", "eagle", size="0.24B",
                     hidden_size=4096, vocab_size=32000, read="yuhuili/EAGLE-llama2-chat-7B:config.json"),
    PublishedDrafter("yuhuili/EAGLE-llama2-chat-13B", "meta-llama/Llama-2-13b-chat-hf", "eagle", size="0.37B",
                     read="yuhuili/EAGLE-llama2-chat-13B:config.json"),
    PublishedDrafter("yuhuili/EAGLE-llama2-chat-70B", "meta-llama/Llama-2-70b-chat-hf", "eagle", size="0.99B",
                     read=_EAGLE + "llama_2_chat_70B_config.json"),
    PublishedDrafter("deepseek-ai/eagle3_qwen3_4b_ttt7", "Qwen/Qwen3-4B", "eagle3",
                     read=_DEEPSPEC + "eagle3/eagle3_qwen3_4b.py"),
    PublishedDrafter("deepseek-ai/eagle3_qwen3_8b_ttt7", "Qwen/Qwen3-8B", "eagle3",
                     read=_DEEPSPEC + "eagle3/eagle3_qwen3_8b.py"),
    PublishedDrafter("deepseek-ai/eagle3_qwen3_14b_ttt7", "Qwen/Qwen3-14B", "eagle3",
                     read=_DEEPSPEC + "eagle3/eagle3_qwen3_14b.py"),
    PublishedDrafter("deepseek-ai/dspark_qwen3_4b_block7", "Qwen/Qwen3-4B", "dspark",
                     read=_DEEPSPEC + "dspark/dspark_qwen3_4b.py"),
    PublishedDrafter("deepseek-ai/dspark_qwen3_8b_block7", "Qwen/Qwen3-8B", "dspark",
                     read=_DEEPSPEC + "dspark/dspark_qwen3_8b.py"),
    PublishedDrafter("deepseek-ai/dspark_qwen3_14b_block7", "Qwen/Qwen3-14B", "dspark",
                     read=_DEEPSPEC + "dspark/dspark_qwen3_14b.py"),
)  # fmt: skip


def published_for(target: str) -> tuple[PublishedDrafter, ...]:
    """Return drafters by hub id or folder, in order of preference; folders outside the hub's cache go by their names."""
    wanted = hub_id(target).casefold()
    own = wanted.rpartition("/")[2]
    is_folder = "/" not in wanted
    return tuple(entry for entry in PUBLISHED if own and wanted == _named(entry.target, is_folder))


def _named(target: str, is_folder: bool) -> str:
    return (target.rpartition("/")[2] if is_folder else target).casefold()


def hub_id(name_or_path: str) -> str:
    """Return the hub id that a model was loaded by, or the name of its folder; "" for a model that was not loaded."""
    parts = PurePath(name_or_path).parts
    cached = next((part for part in reversed(parts) if part.startswith("models--")), None)
    if cached is not None and cached.count("--") >= 2:
        return cached.removeprefix("models--").replace("--", "/", 1)
    if len(parts) == 2 and not Path(name_or_path).exists() and not PurePath(name_or_path).is_absolute():
        return name_or_path
    return parts[-1] if parts else ""


def vocabulary_fits(own: int, theirs: int) -> bool:
    """Return whether a drafter's vocabulary is that of a target, whose tables may have unused rows behind it."""
    return 0 <= theirs - own < MOST_PADDING


def size_misfit(config: Mapping[str, Any], hidden_size: int, vocab_size: int) -> str:
    """Return as text the sizes that a drafter's config, ours or published, requires and the target lacks; "" if all
    fit. A field that is absent or 0 requires nothing. The target may have some rows behind the drafter's vocabulary."""
    layer = config.get("transformer_layer_config")
    fields = {**config, **(layer if isinstance(layer, Mapping) else {})}
    widths = ("target_hidden_size", "backbone_hidden_size", "hidden_size")
    wanted = {"hidden_size": next(filter(None, map(fields.get, widths)), 0), "vocab_size": fields.get("vocab_size")}
    theirs = {"hidden_size": hidden_size, "vocab_size": vocab_size}
    if wanted["vocab_size"] and vocabulary_fits(wanted["vocab_size"], vocab_size):
        del wanted["vocab_size"]
    return ", ".join(
        f"{name} {size} instead of {theirs[name]}" for name, size in wanted.items() if size and size != theirs[name]
    )
