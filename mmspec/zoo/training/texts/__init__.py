"""How the zoo's readers of pictures and their drafters are trained."""
