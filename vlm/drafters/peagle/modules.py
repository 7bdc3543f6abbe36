"""The layers of P-EAGLE behind its first one."""

from __future__ import annotations

from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_normed


class NormedLayer(DraftLayer):
    """A Llama layer with its first norm."""

    def __init__(self, config: LayerConfig):
        super().__init__(config)
        self.input_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def heads(self, attend: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `DraftLayer.heads`; what it reads is normed first."""
        return super().heads(rms_normed(self.input_norm, attend), rotary)
