"""The procedural world: scenes, their pictures, captions and questions, all pure functions of a seed."""
