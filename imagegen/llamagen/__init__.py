"""LlamaGen: raster-order image generation with a Llama over VQ codes, after "Autoregressive Model Beats Diffusion"."""
