"""MAR's transformer: an encoder over the visible tokens, a decoder over all tokens, and the diffusion head."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import pad

from mmspec.imagegen.conditioning import CaptionProjection, empty_embedding
from mmspec.imagegen.continuous.mar.diffusion import diffusion
from mmspec.imagegen.continuous.mar.diffusion_head import DenoisingMLP, DiffusionHead
from mmspec.imagegen.continuous.mar.mar_config import MARConfig
from mmspec.imagegen.continuous.schedules.token_cache import FULL_PASS, DecoderPass, KeysValues, own_tokens


class MARAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, there: Tensor | None, over: Callable[[Tensor, Tensor], KeysValues]) -> Tensor:
        q, k, v = rearrange(self.qkv(x), "r n (three h d) -> three r h n d", three=3, h=self.heads)
        out = F.scaled_dot_product_attention(q, *over(k, v), attn_mask=there)
        return self.proj(rearrange(out, "r h n d -> r n (h d)"))


class MARMlp(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class MARBlock(nn.Module):
    def __init__(self, width: int, heads: int, ratio: float, eps: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = MARAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = MARMlp(width, int(width * ratio))

    def forward(
        self, x: Tensor, there: Tensor | None = None, over: Callable[[Tensor, Tensor], KeysValues] = own_tokens
    ) -> Tensor:
        """Return the output of x [R, N, width]. `there` bool [R, 1, 1, N] are the keys that count, None for all. `over`
        maps the keys and values [R, heads, N, size] of x to those of the attention."""
        x = x + self.attn(self.norm1(x), there, over)
        return x + self.mlp(self.norm2(x))


class MAR(nn.Module):
    """MAR's transformer under the published names ("Autoregressive Image Generation without Vector Quantization"). z of
    every position sees no masked positions. With `caption_dim` the buffer also accepts captions, a feature per
    position. That is our extension; published models have classes, -1 for none."""

    def __init__(self, config: MARConfig):
        super().__init__()
        self.config = config
        width, eps, slots = config.encoder_embed_dim, config.norm_eps, config.buffer_size + config.tokens
        inner, ratio = config.decoder_embed_dim, config.mlp_ratio
        self.class_emb = empty_embedding(config.class_num, width)
        self.fake_latent = nn.Parameter(torch.empty(1, width))
        if config.caption_dim:
            self.caption_proj = CaptionProjection(config.caption_dim, width)
        self.z_proj = nn.Linear(config.token_dim, width)
        self.z_proj_ln = nn.LayerNorm(width, eps=eps)
        self.encoder_pos_embed_learned = nn.Parameter(torch.empty(1, slots, width))
        self.encoder_blocks = nn.ModuleList(
            MARBlock(width, config.encoder_num_heads, ratio, eps) for _ in range(config.encoder_depth)
        )
        self.encoder_norm = nn.LayerNorm(width, eps=eps)
        self.decoder_embed = nn.Linear(width, inner)
        self.mask_token = nn.Parameter(torch.empty(1, 1, inner))
        self.decoder_pos_embed_learned = nn.Parameter(torch.empty(1, slots, inner))
        self.decoder_blocks = nn.ModuleList(
            MARBlock(inner, config.decoder_num_heads, ratio, eps) for _ in range(config.decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(inner, eps=eps)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.empty(1, config.tokens, inner))
        self._start()
        net = DenoisingMLP(config.token_dim, 2 * config.token_dim, inner, config.diffloss_d, config.diffloss_w)
        self.diffloss = nn.ModuleDict({"net": net})

    def _start(self) -> None:
        if self.mask_token.is_meta:
            return
        for table in (
            self.class_emb.weight,
            self.fake_latent,
            self.mask_token,
            self.encoder_pos_embed_learned,
            self.decoder_pos_embed_learned,
            self.diffusion_pos_embed_learned,
        ):
            nn.init.normal_(table, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def head(self, num_sampling_steps: str | int | None = None) -> DiffusionHead:
        """Return the diffusion head with a number of steps, None for the config's; see `kept_timesteps`."""
        steps = self.config.num_sampling_steps if num_sampling_steps is None else num_sampling_steps
        return DiffusionHead(self.diffloss["net"], diffusion(steps))

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor, slots: DecoderPass = FULL_PASS) -> Tensor:
        """Return z [B, L, decoder_embed_dim], the head's condition at every position, of tokens float [B, L, d] and
        `mask` bool [B, L], True where masked; rows may differ in their number. Labels are int64 [B], or captions float
        [B, buffer_size, caption_dim], all zeros for no caption. `slots` are the tokens that the decoder computes."""
        states, visible = self.encode(tokens, mask, labels)
        return self.decode(states, visible, slots)

    def encode(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, VisibleTokens]:
        """Return the states [B, buffer_size + V, encoder_embed_dim] of the buffer and the visible tokens."""
        visible = VisibleTokens(mask)
        buffer = self._buffer(labels)
        shown = self.z_proj(visible.gather(tokens).to(self.z_proj.weight.dtype))
        place = self.encoder_pos_embed_learned.expand(len(tokens), -1, -1)
        place = torch.cat((place[:, : self.config.buffer_size], visible.gather(place[:, self.config.buffer_size :])), 1)
        x = self.z_proj_ln(torch.cat((buffer, shown), 1) + place)
        there = visible.keys(self.config.buffer_size)
        for block in self.encoder_blocks:
            x = block(x, there)
        return self.encoder_norm(x), visible

    def decode(self, states: Tensor, visible: VisibleTokens, slots: DecoderPass = FULL_PASS) -> Tensor:
        x, buffer = self.decoder_embed(states), self.config.buffer_size
        tokens = visible.scatter(x[:, buffer:], self.mask_token)
        x = slots.enter(torch.cat((x[:, :buffer], tokens), 1) + self.decoder_pos_embed_learned)
        for number, block in enumerate(self.decoder_blocks):
            x = block(x, over=slots.layer(number))
        return self.decoder_norm(slots.leave(x))[:, buffer:] + self.diffusion_pos_embed_learned

    def _buffer(self, labels: Tensor) -> Tensor:
        if labels.dim() == 1:
            known = torch.where((labels < 0)[:, None], self.fake_latent, self.class_emb(labels.clamp_min(0)))
            return known[:, None].expand(-1, self.config.buffer_size, -1)
        has_caption = (labels != 0).any(-1).any(-1)[:, None, None]
        return torch.where(has_caption, self.caption_proj(labels.to(self.fake_latent.dtype)), self.fake_latent)


class VisibleTokens:
    """The visible positions of each row of `mask` bool [B, L], True where masked; padding of short rows is unseen."""

    def __init__(self, mask: Tensor):
        count = (~mask).sum(1)
        least, most = torch.stack((count.amin(), count.amax())).tolist()  # the shape of the pass
        self.total = mask.shape[1]
        self.position = mask.byte().argsort(dim=1, stable=True)[:, :most]
        self.there = None if least == most else torch.arange(most, device=mask.device) < count[:, None]

    def gather(self, x: Tensor) -> Tensor:
        """Return [B, V, ...] of x [B, L, ...], 0 at padding."""
        rows = x.gather(1, self.position[..., None].expand(-1, -1, x.shape[-1]))
        return rows if self.there is None else rows.masked_fill(~self.there[..., None], 0)

    def keys(self, buffer: int) -> Tensor | None:
        """Return bool [B, 1, 1, buffer + V], the keys that count; None for all."""
        return None if self.there is None else pad(self.there, (buffer, 0), value=True)[:, None, None]

    def scatter(self, x: Tensor, elsewhere: Tensor) -> Tensor:
        """Return [B, L, width] with x [B, V, width] at visible positions and `elsewhere` [1, 1, width] at the others."""
        place = self.position if self.there is None else torch.where(self.there, self.position, self.total)
        tokens = elsewhere.to(x.dtype).expand(len(x), self.total + 1, -1)
        return tokens.scatter(1, place[..., None].expand_as(x), x)[:, :-1]
