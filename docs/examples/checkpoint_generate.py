import mmspec


def generate(inputs=None, generation_config=None, *, model, **kwargs):
    """Called by `model.generate` with all of its arguments."""
    return mmspec.generate(model, inputs=inputs, generation_config=generation_config, drafter="auto", **kwargs)
