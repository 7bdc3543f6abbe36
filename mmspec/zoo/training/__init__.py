"""Training of the zoo's models from scratch: the training loop, shared objectives, and a `build` for each model."""
