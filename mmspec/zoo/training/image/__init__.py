"""Training of the zoo's models of image codes, and of the models that score images."""
