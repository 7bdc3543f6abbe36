"""Models that are only the zoo's: its VLM's pieces, vision tower and caption encoder, CLIP and judge."""
