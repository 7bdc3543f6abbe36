"""Training of the zoo's vision-language models and their drafters."""
