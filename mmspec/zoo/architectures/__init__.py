"""Architectures that only the zoo has: parts of its VLMs, caption encoder, CLIP, object detector and frame reward."""
