"""MAR's diffusion head: an MLP modulated by time and condition, and the Gaussians of its denoising steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from mmspec.imagegen.continuous.head import Gaussian
from mmspec.imagegen.continuous.hold import HoldClean
from mmspec.imagegen.continuous.mar.diffusion import Diffusion

_FREQUENCIES, _MAX_PERIOD, _EPS = 256, 10000, 1e-6


def timestep_embedding(t: Tensor) -> Tensor:
    """float32 [R, 256] of timesteps [R]: cosines first, then sines."""
    half = _FREQUENCIES // 2
    exponent = -math.log(_MAX_PERIOD) * torch.arange(half, dtype=torch.float32, device=t.device) / half
    angle = t[:, None].float() * exponent.exp()
    return torch.cat((angle.cos(), angle.sin()), -1)


class TimeEmbedding(nn.Module):
    """Sinusoids through two layers."""

    def __init__(self, width: int):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(_FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        return self.mlp(timestep_embedding(t).to(self.mlp[0].weight.dtype))


class ResidualBlock(nn.Module):
    """x + gate * MLP(norm(x) * (1 + scale) + shift), the three from the condition in the order shift, scale, gate."""

    def __init__(self, width: int):
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=_EPS)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """y: the condition behind its SiLU, which all blocks share; so `adaLN_modulation` is entered at its linear layer."""
        shift, scale, gate = self.adaLN_modulation[1](y).chunk(3, -1)
        return torch.addcmul(x, gate, self.mlp(torch.addcmul(shift, self.in_ln(x), 1 + scale)))


class FinalLayer(nn.Module):
    """A modulated norm without weights, then the projection."""

    def __init__(self, width: int, out: int):
        super().__init__()
        self.norm_final = nn.LayerNorm(width, eps=_EPS, elementwise_affine=False)
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """y: as `ResidualBlock` takes it."""
        shift, scale = self.adaLN_modulation[1](y).chunk(2, -1)
        return self.linear(torch.addcmul(shift, self.norm_final(x), 1 + scale))


class DenoisingMLP(nn.Module):
    """The head's network under the published names. dim: d of a token.   out: values it returns a row.   depth: blocks."""

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
        """Blocks begin as the identity and the output as 0."""
        if self.input_proj.weight.is_meta:
            return
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for layer in (self.time_embed.mlp[0], self.time_embed.mlp[2]):
            nn.init.normal_(layer.weight, std=0.02)
        for layer in (*(block.adaLN_modulation[1] for block in self.res_blocks), self.final_layer.adaLN_modulation[1],
                      self.final_layer.linear):  # fmt: skip
            nn.init.zeros_(layer.weight)

    def forward(self, x: Tensor, t: Tensor, z: Tensor) -> Tensor:
        """[R, out] of states x [R, d], timesteps t [R] or [1], conditions z [R, condition]."""
        return self.denoise(x, self.time_embed(t), z)

    def denoise(self, x: Tensor, time: Tensor, z: Tensor) -> Tensor:
        """As `forward`, of embedded timesteps [R, width] or [width]."""
        dtype = self.input_proj.weight.dtype
        x, y = self.input_proj(x.to(dtype)), silu(time + self.cond_embed(z.to(dtype)))
        for block in self.res_blocks:
            x = block(x, y)
        return self.final_layer(x, y)

    def at(self, timesteps: Tensor) -> TimedMLP:
        """The network at the timesteps [T] of a schedule."""
        return TimedMLP(self, timesteps)


class TimedMLP:
    """A network at the timesteps [T] of a schedule, which are embedded once instead of at every step of every token."""

    def __init__(self, net: DenoisingMLP, timesteps: Tensor):
        self.net = net
        with torch.no_grad():
            self.time = net.time_embed(timesteps.to(net.input_proj.weight.device))

    def __call__(self, x: Tensor, step: Tensor | int, z: Tensor) -> Tensor:
        """[R, out] of states x [R, d] at steps int64 [R] of the schedule, or all at one, given z [R, condition]."""
        return self.net.denoise(x, self.time[step], z)

    def paired(self, x: Tensor, step: Tensor | int, z: Tensor) -> tuple[Tensor, Tensor]:
        """What z [2, R, condition] gives at the same states, each float32 [R, out]."""
        step = step if isinstance(step, int) else step.repeat(2)
        return self(x.repeat(2, 1), step, z.flatten(0, 1)).float().chunk(2)


class ReverseSteps:
    """The Gaussians of a schedule's steps, from what a network says at them."""

    def __init__(self, schedule: Diffusion, device: torch.device):
        tables = (schedule.sqrt_recip_alphas_cumprod, schedule.sqrt_recipm1_alphas_cumprod, schedule.posterior_mean_coef1,
                  schedule.posterior_mean_coef2, schedule.posterior_log_variance_clipped, schedule.betas.log())  # fmt: skip
        self._tables = torch.stack(tables).float().to(device)  # [6, T]

    def law(self, x: Tensor, step: Tensor | int, noise: Tensor, variance: Tensor) -> Gaussian:
        """noise, variance: float32 [R, d], what the network predicts at the state x [R, d].   step: an int or int64 [R].

        log variance = f log(beta) + (1 - f) log(posterior variance), f = (v + 1) / 2. x_0 is never clipped.
        """
        recip, recip_less, clean, state, least, most = self._tables[:, step].reshape(6, -1, 1)
        share = (variance + 1) / 2
        start = recip * x - recip_less * noise
        return Gaussian(clean * start + state * x, (share * most + (1 - share) * least) / 2)


class DiffusionHead:
    """A `Head` of MAR: the network predicts the noise and where the variance lies between its bounds.

    Guidance steers the noise alone, null + s (conditional - null); the variance is the conditional one's.
    net: gives 2 d values a row.   schedule: of T steps; the network is fed the timesteps of training.
    """

    network_variance, last_noise = True, False

    def __init__(self, net: DenoisingMLP, schedule: Diffusion):
        self.net, self.schedule, self.steps, self.dim = net.at(schedule.timestep_map), schedule, schedule.steps, net.dim
        self._device = net.input_proj.weight.device
        self._reverse = ReverseSteps(schedule, self._device)

    def hold(self) -> HoldClean:
        """What of a prediction speculation over head time carries over to the next steps."""
        one = self.schedule
        tables = (one.posterior_mean_coef2, one.posterior_mean_coef1, one.posterior_log_variance_clipped / 2,
                  one.betas.log() / 2)  # fmt: skip
        return HoldClean(*(table.to(self._device) for table in tables))

    def gaussian(self, x: Tensor, step: Tensor | int, z: Tensor, guidance: Tensor | None = None) -> Gaussian:
        if guidance is None:
            noise, variance = self.net(x, step, z).float().chunk(2, -1)
            return self._reverse.law(x, step, noise, variance)
        cond, null = self.net.paired(x, step, z)
        (noise, variance), (null_noise, _) = cond.chunk(2, -1), null.chunk(2, -1)
        return self._reverse.law(x, step, null_noise + guidance[:, None] * (noise - null_noise), variance)
