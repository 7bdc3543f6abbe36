"""Trials of a model: its passes over drafts against its single steps. `mmspec.vlm.admission` stores the outcomes."""
