"""A domain of numbers instead of models, in the shape all domains have; it shows what a new one has to bring."""
