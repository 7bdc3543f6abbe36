"""How the zoo's models are built from nothing: the training loop, shared objectives, and one `build` a model."""
