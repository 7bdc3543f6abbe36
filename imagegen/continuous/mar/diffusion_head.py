"""MAR's diffusion head: an MLP modulated by time and condition, its tables over a schedule, and its steps' Gaussians."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from mmspec.imagegen.continuous.head_sampling.head import CleanTokenDrafter, Gaussian, StepTables
from mmspec.imagegen.continuous.mar.diffusion import Diffusion, thinned

Modulation = tuple[Tensor, ...]  # shift, 1 + scale and gate; the last layer has no gate
TABLE_SIZE = 512  # the pairs of a step and a token whose modulations are computed at once


class TimedMLP:
    """A network at the timesteps [T] of a schedule, which are embedded once."""

    def __init__(self, net: DenoisingMLP, timesteps: Tensor):
        self.net = net
        with torch.no_grad():
            self.time = net.time_embed(timesteps.to(net.input_proj.weight.device))

    def about(self, z: Tensor) -> TokenModulations:
        """Return the modulations of R tokens with conditions z [R, condition], or [2, R, condition] of two branches."""
        return TokenModulations(self, z)

    def __call__(self, x: Tensor, step: Tensor | int, about: TokenModulations, row: Tensor | None = None) -> Tensor:
        """Return [C, n, out] of states x [n, d] under each of C branches. `step` is an int, or int64 [n]; `row` int64
        [n] is the token of each state, None for a single state per token."""
        if isinstance(step, int) and row is None:
            modulations = about.at(step)
        else:
            row = torch.arange(len(x), device=x.device) if row is None else row
            step = torch.full_like(row, step) if isinstance(step, int) else step
            modulations = about.of(step, row)
        x = x if about.branches == 1 else x.repeat(about.branches, 1)
        return self.net.denoise(x, modulations).unflatten(0, (about.branches, -1))


class TokenModulations:
    """The layers' modulations of R tokens at each step, computed at once for as many steps as fit in TABLE_SIZE."""

    def __init__(self, timed: TimedMLP, z: Tensor):
        self.timed, net = timed, timed.net
        self.embedded = net.cond_embed((z if z.dim() == 3 else z[None]).to(net.dtype))  # [C, R, width]
        self.branches, tokens = self.embedded.shape[:2]
        self._most = max(TABLE_SIZE // max(tokens, 1), 1)
        self._first, self._table, self._views = 0, None, []  # of the steps first, first + 1...

    def at(self, step: int) -> list[Modulation]:
        """Return per layer the modulations of all tokens at a step, each [C R, width]."""
        self._make(step)
        return self._views[step - self._first]

    def of(self, step: Tensor, row: Tensor) -> list[Modulation]:
        """Return per layer the modulations of the tokens `row` at the steps `step`, int64 [n], each [C n, width]."""
        steps, tokens = len(self.timed.time), self.embedded.shape[1]
        if steps > self._most:
            layers = self.timed.net.modulations((self.timed.time[step] + self.embedded[:, row]).flatten(0, 1))
            return [layer.unbind(-2) for layer in layers]
        self._make(steps - 1)
        branch = torch.arange(self.branches, device=step.device)[:, None]
        chosen = ((step * self.branches + branch) * tokens + row).flatten()
        return self._layers(self._table.flatten(0, 1).index_select(0, chosen))

    def _make(self, step: int) -> None:
        """Compute the table [steps, C R, all parts of all layers] around a step and below, as sampling goes down."""
        if self._table is not None and self._first <= step < self._first + len(self._views):
            return
        self._first = max(step + 1 - self._most, 0)
        time = self.timed.time[self._first : step + 1]
        table = self.timed.net.modulations(time[:, None, None] + self.embedded)
        self._table = torch.cat([layer.flatten(-2) for layer in table], -1).flatten(1, 2)
        layers = [zip(*(part.unbind(0) for part in layer), strict=True) for layer in self._layers(self._table)]
        self._views = [list(at) for at in zip(*layers, strict=True)]

    def _layers(self, table: Tensor) -> list[Modulation]:
        """Return views of a table [..., all parts of all layers]: three per block, two of the last layer."""
        parts = table.split(self.embedded.shape[-1], -1)
        return [parts[first : first + 3] for first in range(0, len(parts), 3)]


_FREQUENCIES, _MAX_PERIOD, _EPS = 256, 10000, 1e-6


def timestep_embedding(t: Tensor) -> Tensor:
    """Return float32 [R, 256] of timesteps [R]: cosines first, then sines."""
    half = _FREQUENCIES // 2
    exponent = -math.log(_MAX_PERIOD) * torch.arange(half, dtype=torch.float32, device=t.device) / half
    angle = t[:, None].float() * exponent.exp()
    return torch.cat((angle.cos(), angle.sin()), -1)


class TimeEmbedding(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(_FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        return self.mlp(timestep_embedding(t).to(self.mlp[0].weight.dtype))


class ResidualBlock(nn.Module):
    """x + gate * MLP(norm(x) * (1 + scale) + shift), with shift, scale and gate from the condition in this order."""

    def __init__(self, width: int):
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=_EPS)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, modulation: Modulation) -> Tensor:
        shift, scale, gate = modulation
        return torch.addcmul(x, gate, self.mlp(torch.addcmul(shift, self.in_ln(x), scale)))


class FinalLayer(nn.Module):
    def __init__(self, width: int, out: int):
        super().__init__()
        self.norm_final = nn.LayerNorm(width, eps=_EPS, elementwise_affine=False)
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, modulation: Modulation) -> Tensor:
        shift, scale = modulation
        return self.linear(torch.addcmul(shift, self.norm_final(x), scale))


class DenoisingMLP(nn.Module):
    """The head's network under the published names, from tokens of `dim` d and a condition to `out` outputs per row."""

    def __init__(self, dim: int, out: int, condition: int, depth: int, width: int):
        super().__init__()
        self.dim = dim
        self.time_embed = TimeEmbedding(width)
        self.cond_embed = nn.Linear(condition, width)
        self.input_proj = nn.Linear(dim, width)
        self.res_blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, out)
        self._start()

    def _start(self) -> None:
        """Initialise the blocks as the identity and the output as 0."""
        if self.input_proj.weight.is_meta:
            return
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for layer in (self.time_embed.mlp[0], self.time_embed.mlp[2]):
            nn.init.normal_(layer.weight, std=0.02)
        for layer in (
            *(block.adaLN_modulation[1] for block in self.res_blocks),
            self.final_layer.adaLN_modulation[1],
            self.final_layer.linear,
        ):
            nn.init.zeros_(layer.weight)

    def forward(self, x: Tensor, t: Tensor, z: Tensor) -> Tensor:
        """Return [R, out] of states x [R, d], timesteps t [R] or [1], conditions z [R, condition]."""
        layers = self.modulations(self.time_embed(t) + self.cond_embed(z.to(self.dtype)))
        return self.denoise(x, [layer.unbind(-2) for layer in layers])

    def modulations(self, y: Tensor) -> list[Tensor]:
        """Return shift, 1 + scale, gate [..., 3, width] per layer, no gate in the last; y is time + condition."""
        y = silu(y)
        return [_modulation(layer.adaLN_modulation[1], y) for layer in (*self.res_blocks, self.final_layer)]

    def denoise(self, x: Tensor, modulations: list[Modulation]) -> Tensor:
        """Return [R, out] of states x [R, d], given the parts [R, width] of each layer's modulation."""
        x = self.input_proj(x.to(self.dtype))
        for layer, modulation in zip((*self.res_blocks, self.final_layer), modulations, strict=True):
            x = layer(x, modulation)
        return x

    @property
    def dtype(self) -> torch.dtype:
        return self.input_proj.weight.dtype

    def at(self, timesteps: Tensor) -> TimedMLP:
        return TimedMLP(self, timesteps)


def _modulation(layer: nn.Linear, y: Tensor) -> Tensor:
    """Return [..., parts, width], with 1 added to the scale."""
    width = layer.in_features
    offset = torch.zeros_like(layer.bias)
    offset[width : 2 * width] = 1
    return linear(y, layer.weight, layer.bias + offset).unflatten(-1, (-1, width))


class ReverseSteps:
    def __init__(self, schedule: Diffusion, device: torch.device):
        # the mean is clean x_0 + state x_t, and x_0 = recip x_t - recip_less noise, which is never clipped
        clean, state = schedule.posterior_mean_coef1, schedule.posterior_mean_coef2
        least, most = schedule.posterior_log_variance_clipped / 2, schedule.betas.log() / 2
        of_state = clean * schedule.sqrt_recip_alphas_cumprod + state
        of_noise = -clean * schedule.sqrt_recipm1_alphas_cumprod
        self._tables = StepTables(device, of_state, of_noise, (least + most) / 2, (most - least) / 2)

    def law(self, x: Tensor, step: Tensor | int, noise: Tensor, variance: Tensor) -> Gaussian:
        """Return the Gaussian of a step (an int, or int64 [R]) of the states, predicted noise and predicted v, float32
        [R, d]. log variance = f log(beta) + (1 - f) log(posterior variance), f = (v + 1) / 2."""
        of_state, of_noise, middle, half = self._tables.at(step)
        return Gaussian(of_state * x + of_noise * noise, middle + half * variance)


class DiffusionHead:
    """MAR's `Head`: 2 d outputs predict the noise and the position of the variance between its bounds. Guidance steers
    the noise alone, null + s (conditional - null); the variance is the conditional branch's."""

    network_variance, last_noise = True, False

    def __init__(self, net: DenoisingMLP, schedule: Diffusion):
        self.net, self.schedule, self.steps, self.dim = net.at(schedule.timestep_map), schedule, schedule.steps, net.dim
        self._device = net.input_proj.weight.device
        self._reverse = ReverseSteps(schedule, self._device)

    def step_drafter(self) -> CleanTokenDrafter:
        plan = self.schedule
        tables = (
            plan.posterior_mean_coef2,
            plan.posterior_mean_coef1,
            plan.posterior_log_variance_clipped / 2,
            plan.betas.log() / 2,
        )
        return CleanTokenDrafter(*(table.to(self._device) for table in tables))

    def thinned(self, steps: int) -> DiffusionHead:
        return self if steps == self.steps else DiffusionHead(self.net.net, thinned(self.schedule, steps))

    def about(self, z: Tensor) -> TokenModulations:
        return self.net.about(z)

    def gaussian(
        self,
        x: Tensor,
        step: Tensor | int,
        about: TokenModulations,
        guidance: Tensor | None = None,
        row: Tensor | None = None,
    ) -> Gaussian:
        out = self.net(x, step, about, row).float()
        noise, variance = out[0].chunk(2, -1)
        if guidance is not None:
            null = out[1].chunk(2, -1)[0]
            noise = null + guidance[:, None] * (noise - null)
        return self._reverse.law(x, step, noise, variance)
