"""MAR: a masked autoregressive transformer whose tokens a diffusion head draws."""
