"""The procedural world: scenes, their pixels, captions, questions and prompts, all pure functions of a seed."""
