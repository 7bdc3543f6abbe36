"""The bench of vision-language models: text behind pictures."""
