"""Models that only the zoo has: its VLMs' pieces, caption encoder, CLIP, object detector and frame reward."""
