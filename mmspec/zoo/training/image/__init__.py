"""How the zoo's models of image codes, and the models that score images, are trained."""
