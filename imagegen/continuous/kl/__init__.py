"""KL autoencoders: pixels to latents and back."""
