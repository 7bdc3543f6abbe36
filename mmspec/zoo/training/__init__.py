"""How the zoo's models are made from nothing: the training loop, batches, and one `build` a model."""
