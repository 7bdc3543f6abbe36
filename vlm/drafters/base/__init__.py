"""The base classes of drafter families, the state of a request, and the parts of a prompt that drafters read."""
