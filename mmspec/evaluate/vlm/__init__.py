"""The benches of vision-language models and of text models."""
