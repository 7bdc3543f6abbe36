"""How the zoo's models of videos are trained."""
