"""How a block of latents is drawn: noise that is reserved for it, and the walk from noise to latents."""
