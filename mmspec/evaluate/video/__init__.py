"""The bench of videos: routed blocks of frames, and codes frame after frame."""
