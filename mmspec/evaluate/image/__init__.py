"""The bench of image models: discrete image tokens."""
