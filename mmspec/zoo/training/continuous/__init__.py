"""How the zoo's models of continuous image tokens are trained."""
