"""How the zoo's vision-language models and their drafters are trained."""
