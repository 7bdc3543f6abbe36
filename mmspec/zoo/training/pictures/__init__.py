"""How the zoo's models of pictures are trained."""
