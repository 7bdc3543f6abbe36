"""Trials of a model: passes over drafts against its own single steps. Outcomes are remembered in `mmspec.vlm.admission`."""
